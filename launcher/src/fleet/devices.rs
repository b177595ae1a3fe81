//! Which GPUs each model has. They are given out in order, and come back when a model is unloaded. Where a budget decides
//! which models are awake, models may share GPUs: each is given those that the fewest others have.

use super::error::FleetError;

/// The GPUs of this machine, and how many models have each.
#[derive(Debug)]
pub struct Gpus {
    all: Vec<Gpu>,
    are_shared: bool,
}

#[derive(Debug)]
struct Gpu {
    name: String,
    num_models: usize,
}

impl Gpus {
    /// The GPUs that the launcher sees: as `CUDA_VISIBLE_DEVICES` names them, or by number.
    pub fn new(count: u32, visible: Option<&str>) -> Self {
        let named: Vec<String> = match visible {
            Some(list) => list.split(',').map(|name| name.trim().to_owned()).collect(),
            None => (0..count).map(|number| number.to_string()).collect(),
        };
        let named = named.into_iter().take(count as usize);
        Self { all: named.map(|name| Gpu { name, num_models: 0 }).collect(), are_shared: false }
    }

    /// Whether several models may have one GPU.
    pub fn shared(self, are_shared: bool) -> Self {
        Self { are_shared, ..self }
    }

    /// Takes the first of those that the fewest models have; all or none.
    pub fn take(&mut self, count: u32) -> Result<Vec<String>, FleetError> {
        let (needed, visible) = (count as usize, self.all.len());
        let mut offered: Vec<_> =
            self.all.iter_mut().filter(|gpu| self.are_shared || gpu.num_models == 0).collect();
        if needed > offered.len() {
            return Err(FleetError::TooFewGpus { needed: count, free: offered.len(), visible });
        }
        offered.sort_by_key(|gpu| gpu.num_models);
        offered.truncate(needed);
        offered.iter_mut().for_each(|gpu| gpu.num_models += 1);
        Ok(offered.into_iter().map(|gpu| gpu.name.clone()).collect())
    }

    /// Gives them back.
    pub fn give_back(&mut self, gpus: &[String]) {
        let given = self.all.iter_mut().filter(|gpu| gpus.contains(&gpu.name));
        given.for_each(|gpu| gpu.num_models -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn gpus_are_given_out_in_order_and_come_back() {
        let mut gpus = Gpus::new(4, None);
        assert_eq!(gpus.take(2), Ok(names(&["0", "1"])));
        assert_eq!(gpus.take(1), Ok(names(&["2"])));
        assert_eq!(gpus.take(2), Err(FleetError::TooFewGpus { needed: 2, free: 1, visible: 4 }));
        gpus.give_back(&names(&["0", "1"]));
        assert_eq!(gpus.take(3), Ok(names(&["0", "1", "3"])));
        assert_eq!(gpus.take(0), Ok(Vec::new()));
    }

    #[test]
    fn models_that_take_turns_share_the_gpus_that_the_fewest_have() {
        let mut gpus = Gpus::new(3, None).shared(true);
        assert_eq!(gpus.take(2), Ok(names(&["0", "1"])));
        assert_eq!(gpus.take(2), Ok(names(&["2", "0"])));
        assert_eq!(gpus.take(1), Ok(names(&["1"])));
        assert_eq!(gpus.take(4), Err(FleetError::TooFewGpus { needed: 4, free: 3, visible: 3 }));
        gpus.give_back(&names(&["2", "0"]));
        assert_eq!(gpus.take(3), Ok(names(&["2", "0", "1"])));
    }

    #[test]
    fn those_that_a_variable_names_keep_their_names() {
        assert_eq!(Gpus::new(2, Some("GPU-a, 3,-1")).take(2), Ok(names(&["GPU-a", "3"])));
        assert!(Gpus::new(0, Some("")).take(1).is_err());
    }
}
