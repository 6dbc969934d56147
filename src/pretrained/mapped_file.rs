//! Files that are read in place.

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use memmap2::Mmap;

use crate::error::Error;

/// Maps a file into memory.
pub(super) fn open(path: &Path) -> Result<Mmap, Error> {
    let file = File::open(path).map_err(|error| Error::file(path, error))?;
    if file.metadata().is_ok_and(|metadata| metadata.is_dir()) {
        return Err(Error::file(path, "is a folder, and a file is expected"));
    }
    // SAFETY: the file is only read; as with every mapped file, another program that shortens it meanwhile breaks
    // this one.
    #[allow(unsafe_code, reason = "mapping a file is unsafe by nature")]
    unsafe { Mmap::map(&file) }.map_err(|error| Error::file(path, error))
}

/// Lets go of the memory that these bytes were read into. What is mapped counts as this program's memory until then.
pub(super) fn release(map: &Mmap, bytes: &Range<usize>) {
    #[cfg(unix)]
    {
        // Linux maps what lies around a page that is read, too.
        const AROUND: usize = 1 << 16;
        let (start, end) = (bytes.start.saturating_sub(AROUND), (bytes.end + AROUND).min(map.len()));
        // SAFETY: the map is of a file and nothing writes to it, so pages that are let go come back the same.
        #[allow(unsafe_code, reason = "the advice is unsafe for maps that are written to")]
        let released = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, end - start) };
        // Where the system declines, it takes the pages back when it needs them.
        drop(released);
    }
    #[cfg(not(unix))]
    let _ = (map, bytes);
}
