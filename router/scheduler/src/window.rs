//! How many blocks a sequence needs. Where every layer of the model has a sliding window, blocks wholly
//! behind the widest are given back while their sequence runs, so that it needs few however long it becomes.
//!
//! ```text
//!   blocks     0 1 2 3 4 5 6 7 8 9
//!              . . . . x x x x o o      . given back (perhaps cached)  x seen from `next`  o for what is planned
//!                      │       └ next
//!                      └ next + 1 - window
//! ```

/// The window of a model, counted in blocks.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    block_size: u32,
    /// Positions that a query sees, its own among them; `None` if some layer sees all.
    positions: Option<u32>,
    /// Blocks that a sequence is given at a time.
    most: u32,
}

impl Window {
    /// The window of a model whose layers see at most `positions`, over a pool of `num_blocks`.
    pub fn new(positions: Option<u32>, block_size: u32, num_blocks: u32) -> Self {
        // Twice the positions that are seen, so that chunks of prompts are as long as the window.
        let ample = |positions: u32| positions.saturating_mul(2).div_ceil(block_size).saturating_add(2);
        let most = positions.map_or(u32::MAX, |positions| ample(positions).min(num_blocks));
        Self { block_size, positions, most }
    }

    /// Blocks from the start that no query at position `next` or behind it sees.
    pub fn num_behind(self, next: u32) -> usize {
        let unseen = self.positions.map_or(0, |positions| (next + 1).saturating_sub(positions));
        (unseen / self.block_size) as usize
    }

    /// Blocks, counted from the start, that a sequence of `len` tokens has once it gave `num_behind` back.
    pub fn num_given(self, len: u32, num_behind: usize) -> usize {
        (len.div_ceil(self.block_size) as usize).min(num_behind.saturating_add(self.most as usize))
    }

    /// Blocks that a sequence of `len` tokens holds at a time.
    pub fn num_held(self, len: u32) -> usize {
        self.num_given(len, 0)
    }

    /// Blocks without which a sequence of `len` tokens cannot be computed.
    pub fn num_needed(self, len: u64) -> u64 {
        let seen = |positions: u32| u64::from((positions - 1).div_ceil(self.block_size)) + 1;
        let all = len.div_ceil(u64::from(self.block_size));
        self.positions.map_or(all, |positions| all.min(seen(positions)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_window_everything_stays() {
        let all = Window::new(None, 4, 10);
        assert_eq!(all.num_behind(1_000_000), 0);
        assert_eq!((all.num_held(39), all.num_held(41)), (10, 11));
        assert_eq!(all.num_needed(41), 11);
    }

    #[test]
    fn a_block_is_behind_when_its_last_position_is_not_seen() {
        let window = Window::new(Some(6), 4, 100);
        // The query at 8 sees 3..=8, that at 9 sees 4..=9.
        assert_eq!((window.num_behind(8), window.num_behind(9), window.num_behind(12)), (0, 1, 1));
        assert_eq!(window.num_behind(13), 2);
    }

    #[test]
    fn a_window_of_one_sees_only_itself() {
        let window = Window::new(Some(1), 4, 100);
        assert_eq!((window.num_behind(3), window.num_behind(4)), (0, 1));
        assert_eq!(window.num_needed(1000), 1);
    }

    #[test]
    fn what_is_needed_suffices_at_every_position() {
        for (positions, block_size) in [(1, 1), (1, 4), (5, 4), (6, 4), (8, 4), (9, 4), (7, 1), (3, 8)] {
            let window = Window::new(Some(positions), block_size, u32::MAX);
            let most =
                (0..200u32).map(|next| (next / block_size + 1) as usize - window.num_behind(next)).max();
            assert_eq!(most, Some(window.num_needed(200) as usize), "{positions} in blocks of {block_size}");
        }
    }

    #[test]
    fn what_is_given_fits_the_pool() {
        assert_eq!(Window::new(Some(8), 4, 100).num_held(1000), 6);
        let small = Window::new(Some(8), 4, 5);
        assert_eq!((small.num_held(1000), small.num_given(1000, 7), small.num_given(40, 7)), (5, 12, 10));
    }
}
