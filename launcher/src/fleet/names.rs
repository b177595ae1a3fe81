//! The names that requests may send: those of models and of their adapters, each of which means one model.

use std::collections::BTreeSet;

use super::error::FleetError;
use crate::args::Args;

/// The names of a model with these flags, its own first.
pub fn of(name: &str, args: &Args) -> Vec<String> {
    let adapters = args.router.adapters.lora_adapters.iter().map(|adapter| adapter.name.clone());
    std::iter::once(name.to_owned()).chain(adapters).collect()
}

/// Refuses names that are taken, or given twice.
pub fn check<'a>(
    taken: impl Iterator<Item = &'a String>,
    new: impl Iterator<Item = &'a String>,
) -> Result<(), FleetError> {
    let mut seen: BTreeSet<&String> = taken.collect();
    let repeated = new.into_iter().find(|name| !seen.insert(name));
    repeated.map_or(Ok(()), |name| Err(FleetError::NameOfTwo(name.clone())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_means_one_model() {
        let names = |names: &[&str]| -> Vec<String> { names.iter().map(|it| (*it).to_owned()).collect() };
        let (taken, new) = (names(&["a", "style"]), names(&["b", "c"]));
        assert_eq!(check(taken.iter(), new.iter()), Ok(()));
        for repeated in [names(&["b", "style"]), names(&["b", "b"])] {
            let error = check(taken.iter(), repeated.iter());
            assert_eq!(error, Err(FleetError::NameOfTwo(repeated[1].clone())));
        }
    }
}
