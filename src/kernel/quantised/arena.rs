//! Where quantised matrices are put one after the other, as they are read.

use std::sync::Arc;

use memmap2::{Mmap, MmapMut};

use super::super::block_kind::{BLOCK, BlockKind};
use super::super::large_pages::large_pages;
use super::matrix::{QuantisedMatrix, Stack};
use super::repack::repack;

/// Room for quantised matrices. Those of a group that are of one kind and height make one stack.
pub(crate) struct QuantisedArena {
    memory: MmapMut,
    places: Vec<Place>,
}

struct Place {
    kind: BlockKind,
    stack: Stack,
    first: usize,
    height: usize,
}

/// A cache line, at which each stack starts.
const LINE: usize = 64;

impl QuantisedArena {
    /// Room for groups of matrices, each of a kind and of `[d_input, d_output]`. `None` where the system gives no memory.
    ///
    /// # Panics
    ///
    /// When a matrix is not made of whole blocks.
    pub(in super::super) fn new(groups: &[Vec<(BlockKind, [usize; 2])>]) -> Option<Self> {
        let mut places: Vec<Place> = Vec::new();
        let mut len: usize = 0;
        for group in groups {
            for stacked in group.chunk_by(|(a, [a_input, _]), (b, [b_input, _])| (a, a_input) == (b, b_input)) {
                let (kind, [d_input, _]) = stacked[0];
                assert!(d_input.is_multiple_of(BLOCK), "{d_input} numbers of a row are whole blocks");
                let height = stacked.iter().map(|(_, [_, d_output])| d_output).sum();
                let stack = Stack { format: kind.format(), d_input, height, start: len.next_multiple_of(LINE) };
                len = stack.start + stack.bytes();
                let mut first = 0;
                for (_, [_, height]) in stacked {
                    places.push(Place { kind, stack, first, height: *height });
                    first += height;
                }
            }
        }
        Some(Self { memory: large_pages(len)?, places })
    }

    /// Takes the blocks of a matrix, output after output; matrices are counted through all groups.
    pub(crate) fn write(&mut self, index: usize, blocks: &[u8]) {
        let Place { kind, stack, first, height } = &self.places[index];
        assert_eq!(blocks.len(), height * stack.d_input / BLOCK * kind.bytes(), "the blocks are those of the matrix");
        repack(*kind, blocks, &mut self.memory, stack, *first);
    }

    /// The matrices. `None` where the system refuses.
    pub(crate) fn into_matrices(self) -> Option<Vec<QuantisedMatrix>> {
        let memory: Arc<Mmap> = Arc::new(self.memory.make_read_only().ok()?);
        let matrix = |Place { stack, first, height, .. }: Place| QuantisedMatrix {
            memory: Arc::clone(&memory),
            stack,
            rows: first..first + height,
        };
        Some(self.places.into_iter().map(matrix).collect())
    }
}
