//! Work in pieces on every thread, the calling one among them.

#[cfg(feature = "flex")]
use std::mem::MaybeUninit;
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

/// `len` numbers, of which `work` makes each piece from zeros. What is not on hand in a cache is touched once, by the thread
/// that works on it.
#[cfg(feature = "flex")]
pub(super) fn fill(len: usize, piece: usize, work: impl Fn(usize, &mut [f32]) + Sync) -> Vec<f32> {
    let mut numbers = Vec::with_capacity(len);
    pieces(&mut numbers.spare_capacity_mut()[..len], piece, |index, unwritten| {
        unwritten.fill(MaybeUninit::new(0.0));
        // SAFETY: all of the piece has been written.
        work(index, unsafe { unwritten.assume_init_mut() });
    });
    // SAFETY: the pieces make up `len` numbers, and each has been written.
    unsafe { numbers.set_len(len) };
    numbers
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

    #[cfg(feature = "flex")]
    #[test]
    fn numbers_are_filled_from_zeros() {
        let numbers = super::fill(1001, 10, |index, piece| piece.iter_mut().for_each(|x| *x += index as f32 + 1.0));
        assert_eq!(numbers.len(), 1001);
        assert!(numbers.iter().enumerate().all(|(at, &number)| number == (at / 10) as f32 + 1.0));
        assert!(super::fill(0, 10, |_, _| ()).is_empty());
    }

    #[test]
    fn pieces_cover_the_data() {
        let mut data = vec![0; 1001];
        super::pieces(&mut data, 10, |index, piece| piece.fill(index + 1));
        assert!(data.iter().enumerate().all(|(at, &value)| value == at / 10 + 1));
    }
}
