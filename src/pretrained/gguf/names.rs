//! From the tensors of a file to the tensors of a checkpoint: their names, and what the writers of these files change.

use std::ops::Range;

use super::architectures::Architecture;
use super::config::HeadCounts;
use super::header::TensorEntry;

/// What the writers of an architecture's files do to a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// In each head of the queries, the features that turn together stand side by side.
    InterleavedQueries,
    /// The same for the keys.
    InterleavedKeys,
    /// All queries, all keys, all values; a checkpoint has those of one head after those of another.
    StackedProjections,
    /// The matrix is stored `[out, in]`, and in a checkpoint `[in, out]`.
    Transposed,
    /// The weights have the 1 that the model adds to them.
    PlusOne,
}

/// How the numbers of a tensor become those of the tensor in a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    AsStored,
    Interleaved { d_head: usize },
    Stacked { n_heads: usize, d_head: usize },
    Transposed,
    PlusOne,
}

impl Layout {
    /// The row of the file that holds `row` of a checkpoint's tensor; `None` where all are in their places.
    pub fn row_in_file(self, row: usize) -> Option<usize> {
        match self {
            Self::AsStored | Self::Transposed | Self::PlusOne => None,
            Self::Interleaved { d_head } => {
                let (head, feature) = (row / d_head, row % d_head);
                let (half, pair) = (feature / (d_head / 2), feature % (d_head / 2));
                Some(head * d_head + 2 * pair + half)
            }
            Self::Stacked { n_heads, d_head } => {
                let (head, projection, feature) = (row / (3 * d_head), row / d_head % 3, row % d_head);
                Some((projection * n_heads + head) * d_head + feature)
            }
        }
    }

    /// The shape of the tensor in a checkpoint.
    pub fn shape(self, stored: &[usize]) -> Vec<usize> {
        let mut shape = stored.to_vec();
        if self == Self::Transposed {
            shape.reverse();
        }
        shape
    }
}

/// The name in a checkpoint of a tensor of the file, and its layout; or what is wrong with it.
pub(super) fn translate(
    architecture: &Architecture,
    heads: HeadCounts,
    tensor: &TensorEntry,
) -> Result<(String, Layout), String> {
    let unknown = || format!("tensor `{}` is not known in files of architecture {}", tensor.name, architecture.name);
    let (path, suffix) = tensor.name.rsplit_once('.').ok_or_else(unknown)?;
    if !["weight", "bias"].contains(&suffix) {
        return Err(unknown());
    }
    let layer = layer_number(path);
    let stem = match &layer {
        Some(number) => [&path[..number.start], "N", &path[number.end..]].concat(),
        None => path.to_owned(),
    };
    let names = architecture.names.iter().rev().flat_map(|table| table.iter());
    let (_, hf) = names.into_iter().find(|(theirs, _)| *theirs == stem).ok_or_else(unknown)?;
    let hf = match layer {
        Some(number) => hf.replacen('N', &path[number], 1),
        None => (*hf).to_owned(),
    };
    let change = architecture.changes.iter().find(|(theirs, _)| *theirs == stem).map(|(_, change)| *change);
    let layout = match change {
        Some(change) => layout(change, suffix, heads, tensor)?,
        None => Layout::AsStored,
    };
    Ok((format!("{hf}.{suffix}"), layout))
}

/// Where a path has the number of a layer.
fn layer_number(path: &str) -> Option<Range<usize>> {
    const BLOCKS: &str = "blk.";
    let rest = path.strip_prefix(BLOCKS)?;
    let number = &rest[..rest.find('.')?];
    // Another spelling of a number would name the same tensor again.
    let is_plain = number.parse::<u32>().is_ok_and(|value| value.to_string() == number);
    is_plain.then(|| BLOCKS.len()..BLOCKS.len() + number.len())
}

fn layout(change: Change, suffix: &str, heads: HeadCounts, tensor: &TensorEntry) -> Result<Layout, String> {
    let rows = tensor.shape.first().copied().unwrap_or(1);
    let per_head = |n_heads: usize, multiple: usize, what: &str| match rows.checked_div(n_heads) {
        Some(per_head) if per_head * n_heads == rows && per_head > 0 && per_head.is_multiple_of(multiple) => {
            Ok(per_head)
        }
        _ => Err(format!("tensor `{}` has {rows} rows, which do not make up {n_heads} heads of {what}", tensor.name)),
    };
    Ok(match change {
        Change::InterleavedQueries => Layout::Interleaved { d_head: per_head(heads.queries, 2, "queries")? },
        Change::InterleavedKeys => Layout::Interleaved { d_head: per_head(heads.keys, 2, "keys")? },
        Change::StackedProjections => {
            let per_head = per_head(heads.queries, 3, "queries, keys and values")?;
            Layout::Stacked { n_heads: heads.queries, d_head: per_head / 3 }
        }
        Change::Transposed if suffix == "weight" => Layout::Transposed,
        Change::PlusOne if suffix == "weight" => Layout::PlusOne,
        Change::Transposed | Change::PlusOne => Layout::AsStored,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(layout: Layout, count: usize) -> Vec<usize> {
        (0..count).map(|row| layout.row_in_file(row).expect("rows move")).collect()
    }

    #[test]
    fn pairs_that_turn_are_taken_apart() {
        // Two heads of six features: the file has 0 3 1 4 2 5 of a checkpoint's head.
        assert_eq!(rows(Layout::Interleaved { d_head: 6 }, 12), [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]);
    }

    #[test]
    fn stacked_projections_go_to_their_heads() {
        // Two heads of one feature: q0 q1 k0 k1 v0 v1 in the file, q0 k0 v0 q1 k1 v1 in a checkpoint.
        assert_eq!(rows(Layout::Stacked { n_heads: 2, d_head: 1 }, 6), [0, 2, 4, 1, 3, 5]);
    }

    #[test]
    fn layers_have_plain_numbers() {
        assert_eq!(layer_number("blk.12.attn_q"), Some(4..6));
        for path in ["blk.012.attn_q", "blk.+1.attn_q", "blk.x.attn_q", "blk.12", "token_embd"] {
            assert_eq!(layer_number(path), None, "{path}");
        }
    }
}
