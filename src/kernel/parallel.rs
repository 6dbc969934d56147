//! Work in pieces on every thread, the calling one among them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::team;
pub(super) use super::team::threads;

/// Calls `work` once with every number below `count`, in any order. Whoever is free takes the next.
pub(super) fn each(count: usize, work: impl Fn(usize) + Sync) {
    if count <= 1 || threads() == 1 {
        return (0..count).for_each(work);
    }
    let next = AtomicUsize::new(0);
    team::together(&|| {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return;
            }
            work(index);
        }
    });
}

/// Calls `work` with every piece of `len` elements of `data` (the last may be shorter) and its number.
pub(super) fn pieces<T: Send>(data: &mut [T], len: usize, work: impl Fn(usize, &mut [T]) + Sync) {
    let count = data.len().div_ceil(len);
    let rest = Mutex::new(data.chunks_mut(len).enumerate());
    each(count, |_| {
        let piece = rest.lock().expect("no piece panicked").next();
        if let Some((index, piece)) = piece {
            work(index, piece);
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn each_number_is_taken_once() {
        let taken: Vec<_> = (0..1000).map(|_| AtomicUsize::new(0)).collect();
        super::each(taken.len(), |index| {
            taken[index].fetch_add(1, Ordering::Relaxed);
        });
        assert!(taken.iter().all(|count| count.load(Ordering::Relaxed) == 1));
    }

    #[test]
    fn pieces_cover_the_data() {
        let mut data = vec![0; 1001];
        super::pieces(&mut data, 10, |index, piece| piece.fill(index + 1));
        assert!(data.iter().enumerate().all(|(at, &value)| value == at / 10 + 1));
    }
}
