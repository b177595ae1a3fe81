//! Which GPUs each model has. They are given out in order, and come back when a model is unloaded.

use super::error::FleetError;

/// The GPUs of this machine that nobody has.
#[derive(Debug)]
pub struct Gpus {
    all: Vec<String>,
    free: Vec<String>,
}

impl Gpus {
    /// Those that the launcher sees: as `CUDA_VISIBLE_DEVICES` names them, or by number.
    pub fn new(count: u32, visible: Option<&str>) -> Self {
        let named: Vec<String> = match visible {
            Some(list) => list.split(',').map(|name| name.trim().to_owned()).collect(),
            None => (0..count).map(|number| number.to_string()).collect(),
        };
        let all: Vec<_> = named.into_iter().take(count as usize).collect();
        Self { free: all.clone(), all }
    }

    /// Takes the first free ones; all or none.
    pub fn take(&mut self, count: u32) -> Result<Vec<String>, FleetError> {
        let needed = count as usize;
        if needed > self.free.len() {
            return Err(FleetError::TooFewGpus {
                needed: count,
                free: self.free.len(),
                visible: self.all.len(),
            });
        }
        Ok(self.free.drain(..needed).collect())
    }

    /// Gives them back.
    pub fn give_back(&mut self, gpus: Vec<String>) {
        let is_free = |gpu: &String| gpus.contains(gpu) || self.free.contains(gpu);
        self.free = self.all.iter().filter(|gpu| is_free(gpu)).cloned().collect();
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
        gpus.give_back(names(&["0", "1"]));
        assert_eq!(gpus.take(3), Ok(names(&["0", "1", "3"])));
        assert_eq!(gpus.take(0), Ok(Vec::new()));
    }

    #[test]
    fn those_that_a_variable_names_keep_their_names() {
        assert_eq!(Gpus::new(2, Some("GPU-a, 3,-1")).take(2), Ok(names(&["GPU-a", "3"])));
        assert!(Gpus::new(0, Some("")).take(1).is_err());
    }
}
