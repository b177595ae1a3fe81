//! What grammars of all kinds are held to.

/// Patterns that one text may have to match at once. Whether any text does costs twice as much with every one more: a
/// tenth of a second for 16, a minute and gigabytes for 40.
pub(super) const MAX_JOINED: usize = 8;
