//! Writes files as `torch.save` does, of any size and with faults at will: a zip archive without compression that holds a
//! pickle and one entry per tensor.

/// A tensor to be written.
pub struct Saved {
    pub name: String,
    /// The name of its storage class in Python.
    pub storage: &'static str,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

/// The bytes of a file with these tensors, in dictionaries under `wrappers`.
pub fn torch_file(tensors: &[Saved], wrappers: &[&str]) -> Vec<u8> {
    let mut entries = vec![("archive/data.pkl".to_owned(), pickle(tensors, wrappers))];
    entries.push(("archive/version".to_owned(), b"3\n".to_vec()));
    entries.extend(tensors.iter().enumerate().map(|(key, saved)| (format!("archive/data/{key}"), saved.bytes.clone())));
    zip(&entries)
}

/// A pickle of protocol 2 that makes the dictionary.
fn pickle(tensors: &[Saved], wrappers: &[&str]) -> Vec<u8> {
    let mut out = b"\x80\x02".to_vec();
    for wrapper in wrappers {
        out.extend(b"}");
        push_text(&mut out, wrapper);
    }
    out.extend(b"}(");
    for (key, saved) in tensors.iter().enumerate() {
        push_text(&mut out, &saved.name);
        out.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
        push_text(&mut out, "storage");
        out.extend(format!("ctorch\n{}\n", saved.storage).bytes());
        push_text(&mut out, &key.to_string());
        push_text(&mut out, "cpu");
        push_number(&mut out, saved.shape.iter().product());
        out.extend(b"tQ");
        push_number(&mut out, 0);
        push_numbers(&mut out, &saved.shape);
        let strides: Vec<usize> = (1..=saved.shape.len()).map(|axis| saved.shape[axis..].iter().product()).collect();
        push_numbers(&mut out, &strides);
        out.extend(b"\x89ccollections\nOrderedDict\n)RtR");
    }
    out.extend(b"u");
    out.extend(wrappers.iter().map(|_| b's'));
    out.extend(b".");
    out
}

fn push_text(out: &mut Vec<u8>, text: &str) {
    out.push(b'X');
    out.extend((text.len() as u32).to_le_bytes());
    out.extend(text.bytes());
}

fn push_number(out: &mut Vec<u8>, number: usize) {
    out.push(b'J');
    out.extend(i32::try_from(number).expect("a small number").to_le_bytes());
}

fn push_numbers(out: &mut Vec<u8>, numbers: &[usize]) {
    out.push(b'(');
    numbers.iter().for_each(|number| push_number(out, *number));
    out.push(b't');
}

/// An archive without compression and, as PyTorch can write it, without checksums.
fn zip(entries: &[(String, Vec<u8>)]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for (name, bytes) in entries {
        let offset = out.len() as u32;
        let mut common = Vec::new();
        // Version 2.0, no flags, stored, no time, no checksum; then both sizes and the lengths of name and extras.
        common.extend([20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        common.extend([bytes.len() as u32; 2].iter().flat_map(|size| size.to_le_bytes()));
        common.extend((name.len() as u16).to_le_bytes());
        common.extend([0, 0]);
        out.extend(b"PK\x03\x04");
        out.extend(&common);
        out.extend(name.bytes());
        out.extend(bytes);
        directory.extend(b"PK\x01\x02\x14\x00");
        directory.extend(&common);
        // No comment, first disk, no attributes.
        directory.extend([0; 10]);
        directory.extend(offset.to_le_bytes());
        directory.extend(name.bytes());
    }
    let start = out.len() as u32;
    out.extend(&directory);
    out.extend(b"PK\x05\x06\0\0\0\0");
    out.extend([entries.len() as u16; 2].iter().flat_map(|count| count.to_le_bytes()));
    out.extend((directory.len() as u32).to_le_bytes());
    out.extend(start.to_le_bytes());
    out.extend([0, 0]);
    out
}
