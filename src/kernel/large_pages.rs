//! Memory in large pages, from which weights are read half as fast again.

use memmap2::MmapMut;

/// `len` bytes of zeros, which cost nothing until they are written to. `None` where the system gives no memory.
pub(super) fn large_pages(len: usize) -> Option<MmapMut> {
    let memory = MmapMut::map_anon(len).ok()?;
    #[cfg(target_os = "linux")]
    {
        // Where the system has no large pages to give, small ones do.
        let _ = memory.advise(memmap2::Advice::HugePage);
    }
    Some(memory)
}
