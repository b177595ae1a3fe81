//! Which upstream a request goes to: the rule by which requests are placed among replicas ([`Placement`]), over guesses in
//! the place of accounts. No I/O.

use penstock_scheduler::{Offer, Placement, PlacementPolicy};

use super::index::PrefixIndex;
use super::prompt::{BYTES_PER_TOKEN, CHUNK_BYTES, Prompt};

/// Chunks that an index has room for where neither the upstream nor a flag says how much its cache holds.
const USUAL_CHUNKS: usize = 16_384;
/// Most chunks of one index, about 8 million tokens: some 40 MB of memory.
const MAX_CHUNKS: usize = 262_144;
const CHUNK_TOKENS: usize = CHUNK_BYTES / BYTES_PER_TOKEN;

/// The loads of all upstreams, and the choice among them.
#[derive(Debug)]
pub struct Choice {
    placement: Placement,
    loads: Vec<Load>,
}

/// The work that one upstream has to do, and the prompts that it probably has in its cache.
#[derive(Debug)]
struct Load {
    index: PrefixIndex,
    /// Requests without the end of their response.
    num_requests: usize,
    /// Tokens of those without the first byte of their response that were not found in the index.
    pending: u64,
}

/// An upstream that was chosen for a request, which counts as its load from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chosen {
    /// The number of the upstream.
    pub upstream: usize,
    /// Tokens of the prompt that it probably has in its cache.
    pub matched: u32,
    /// Tokens that it has to compute before it can answer.
    pub pending: u64,
}

impl Choice {
    /// Among so many upstreams, of which nothing is known yet.
    pub fn new(policy: PlacementPolicy, num_upstreams: usize) -> Self {
        let load = || Load { index: PrefixIndex::new(USUAL_CHUNKS), num_requests: 0, pending: 0 };
        Self { placement: Placement::new(policy), loads: (0..num_upstreams).map(|_| load()).collect() }
    }

    /// Chooses among the upstreams that may take the request; `None` if there are none.
    pub fn choose(&mut self, prompt: &Prompt, may_take: impl Fn(usize) -> bool) -> Option<Chosen> {
        let offers: Vec<Option<Offer>> = self
            .loads
            .iter()
            .enumerate()
            .map(|(number, load)| may_take(number).then(|| load.offer(prompt)))
            .collect();
        let upstream = self.placement.choose(&offers)?;
        let Offer { len, matched, .. } = offers[upstream]?;
        let (load, pending) = (&mut self.loads[upstream], u64::from(len - matched));
        load.index.insert(&prompt.chunks);
        load.num_requests += 1;
        load.pending += pending;
        Some(Chosen { upstream, matched, pending })
    }

    /// The first byte of the response came, or none will.
    pub fn compute_ended(&mut self, upstream: usize, pending: u64) {
        self.loads[upstream].pending -= pending;
    }

    /// The request has ended.
    pub fn request_ended(&mut self, upstream: usize) {
        self.loads[upstream].num_requests -= 1;
    }

    /// The upstream has lost its cache.
    pub fn forget(&mut self, upstream: usize) {
        self.loads[upstream].index.clear();
    }

    /// The cache of the upstream holds so many tokens.
    pub fn set_cache(&mut self, upstream: usize, num_tokens: u64) {
        let chunks = usize::try_from(num_tokens).unwrap_or(usize::MAX) / CHUNK_TOKENS;
        self.loads[upstream].index.resize(chunks.clamp(1, MAX_CHUNKS));
    }

    /// Requests there, and the chunks in its index.
    pub fn levels(&self, upstream: usize) -> (usize, usize) {
        let load = &self.loads[upstream];
        (load.num_requests, load.index.len())
    }
}

impl Load {
    fn offer(&self, prompt: &Prompt) -> Offer {
        let len = prompt.num_tokens();
        let matched = self.index.matched(&prompt.chunks) * CHUNK_TOKENS;
        Offer {
            len,
            matched: u32::try_from(matched).unwrap_or(u32::MAX).min(len),
            pending: self.pending,
            num_others: self.num_requests,
            // It is not told how many the upstream runs at a time: what waits for one shows in what is pending.
            num_slots: u32::MAX,
            num_filled: self.index.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prompts of this many chunks, which begin alike if `family` is the same.
    fn prompt(family: u64, num_chunks: u64) -> Prompt {
        let chunks: Vec<_> = (0..num_chunks).map(|chunk| family * 1000 + chunk).collect();
        Prompt { num_bytes: chunks.len() * CHUNK_BYTES, chunks }
    }

    fn choice(num_upstreams: usize) -> Choice {
        Choice::new(PlacementPolicy::LeastWork, num_upstreams)
    }

    /// Sends a request that ends at once.
    fn answered(choice: &mut Choice, prompt: &Prompt) -> Chosen {
        let chosen = choice.choose(prompt, |_| true).unwrap();
        choice.compute_ended(chosen.upstream, chosen.pending);
        choice.request_ended(chosen.upstream);
        chosen
    }

    #[test]
    fn conversations_are_divided_and_return() {
        let mut choice = choice(3);
        let homes: Vec<_> = (0..3).map(|family| answered(&mut choice, &prompt(family, 4)).upstream).collect();
        assert_eq!(homes, [0, 1, 2], "of equals the one that holds the least");
        for turn in 5..9 {
            for (family, home) in (0..3).zip(&homes) {
                let chosen = answered(&mut choice, &prompt(family, turn));
                assert_eq!((chosen.upstream, chosen.pending), (*home, 32));
                assert_eq!(chosen.matched, (turn as u32 - 1) * 32);
            }
        }
    }

    #[test]
    fn a_burst_with_one_prompt_stays_together_until_others_have_less_to_do() {
        let mut choice = choice(2);
        let placed: Vec<_> =
            (0..5).map(|_| choice.choose(&prompt(1, 2), |_| true).unwrap().upstream).collect();
        assert_eq!(placed, [0, 0, 0, 0, 1], "four others weigh as much as its 64 tokens computed again");
    }

    #[test]
    fn what_has_nothing_in_common_goes_where_the_least_waits() {
        let mut choice = choice(2);
        let long = choice.choose(&prompt(1, 40), |_| true).unwrap();
        for family in 2..8 {
            let other = choice.choose(&prompt(family, 1), |_| true).unwrap();
            assert_ne!(other.upstream, long.upstream, "its prompt is still computed");
        }
        choice.compute_ended(long.upstream, long.pending);
        assert_eq!(choice.choose(&prompt(9, 1), |_| true).unwrap().upstream, long.upstream);
        assert_eq!(choice.levels(long.upstream), (2, 41));
    }

    #[test]
    fn those_that_may_not_take_it_are_passed_over_and_forgotten_ones_hold_nothing() {
        let mut choice = choice(2);
        assert_eq!(answered(&mut choice, &prompt(1, 4)).upstream, 0);
        let elsewhere = choice.choose(&prompt(1, 4), |number| number != 0).unwrap();
        assert_eq!((elsewhere.upstream, elsewhere.matched), (1, 0));
        assert_eq!(choice.choose(&prompt(1, 4), |_| false), None);
        choice.forget(0);
        assert_eq!(choice.levels(0), (0, 0));
        assert_eq!(answered(&mut choice, &prompt(1, 4)).upstream, 1);
    }

    #[test]
    fn an_index_holds_as_much_as_the_cache() {
        let mut choice = choice(1);
        choice.set_cache(0, 3 * CHUNK_TOKENS as u64);
        answered(&mut choice, &prompt(1, 5));
        assert_eq!(choice.levels(0).1, 3);
        choice.set_cache(0, u64::MAX);
        answered(&mut choice, &prompt(2, 5));
        assert_eq!(choice.levels(0).1, 8);
    }

    #[test]
    fn round_robin_takes_turns_whatever_was_sent() {
        let mut choice = Choice::new(PlacementPolicy::RoundRobin, 2);
        let placed: Vec<_> = (0..4).map(|_| answered(&mut choice, &prompt(1, 9)).upstream).collect();
        assert_eq!(placed, [0, 1, 0, 1]);
    }
}
