//! Counts GPUs and CPU cores, from which the launcher derives the number of shards and their threads.

use std::path::Path;

/// The devices of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hardware {
    /// GPUs that child processes can see.
    pub num_gpus: u32,
    /// CPU cores that child processes may use.
    pub num_cpus: u32,
}

impl Hardware {
    /// Counts the devices of this machine.
    pub fn detect() -> Self {
        let visible = ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"].map(|name| std::env::var(name).ok());
        let installed = count_installed(Path::new("/proc/driver/nvidia/gpus"));
        let num_cpus = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        Self { num_gpus: count_visible(installed, visible.iter().flatten()), num_cpus }
    }
}

fn count_installed(drivers: &Path) -> u32 {
    std::fs::read_dir(drivers).map_or(0, |entries| entries.count() as u32)
}

/// The first variable that lists devices counts; "all" is not a list. The result is at most `installed`.
fn count_visible<'a>(installed: u32, variables: impl Iterator<Item = &'a String>) -> u32 {
    let mut lists = variables.filter(|list| !matches!(list.trim(), "all"));
    lists.next().map_or(installed, |list| count_listed(list).min(installed))
}

/// Counts entries up to the first that is not a device, as CUDA does: "0,1,-1,2" counts two, "" and "void" count none.
fn count_listed(list: &str) -> u32 {
    let names_device = |entry: &&str| !matches!(entry.trim(), "" | "-1" | "none" | "void" | "NoDevFiles");
    list.split(',').take_while(names_device).count() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visible(installed: u32, lists: &[&str]) -> u32 {
        let lists: Vec<String> = lists.iter().map(|list| (*list).to_owned()).collect();
        count_visible(installed, lists.iter())
    }

    #[test]
    fn every_installed_gpu_is_visible_unless_a_variable_lists_some() {
        assert_eq!(visible(4, &[]), 4);
        assert_eq!(visible(4, &["all"]), 4);
        assert_eq!(visible(4, &["1,3"]), 2);
        assert_eq!(visible(4, &["0,1,-1,2"]), 2);
        assert_eq!(visible(4, &[""]), 0);
    }

    #[test]
    fn a_list_cannot_add_gpus() {
        assert_eq!(visible(1, &["0,1"]), 1);
        assert_eq!(visible(0, &["all", "0"]), 0);
    }
}
