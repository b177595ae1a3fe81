//! Limits on grammars of all kinds.

/// Most patterns that one text may have to match at once. To find out whether any text does costs twice as much for
/// each further one: a tenth of a second for 16, a minute and gigabytes for 40.
pub(super) const MAX_JOINED: usize = 8;
