//! Variables that stand for flags about nodes: those of torchrun and of Kubernetes' LeaderWorkerSet.

use std::ffi::OsString;

/// A variable, the flag that it stands for, and the flag's own variable, which wins.
const STAND_INS: &[(&str, &str, &str)] = &[
    ("GROUP_RANK", "node-rank", "NODE_RANK"),
    ("LWS_GROUP_SIZE", "nnodes", "NNODES"),
    ("LWS_WORKER_INDEX", "node-rank", "NODE_RANK"),
    ("LWS_LEADER_ADDRESS", "master-addr", "MASTER_ADDR"),
];

/// Arguments for those that are set. They go before the command line, whose flags win.
pub fn stand_ins(variable: impl Fn(&str) -> Option<OsString>) -> Vec<OsString> {
    let is_set = |name: &str| variable(name).filter(|value| !value.is_empty());
    let argument = |(name, flag, own): &(&str, &str, &str)| {
        let mut argument = OsString::from(format!("--{flag}="));
        argument.push(is_set(name).filter(|_| is_set(own).is_none())?);
        Some(argument)
    };
    STAND_INS.iter().filter_map(argument).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(variables: &[(&str, &str)]) -> Vec<OsString> {
        stand_ins(|asked| variables.iter().find(|(name, _)| *name == asked).map(|(_, value)| value.into()))
    }

    #[test]
    fn a_leader_worker_set_says_all() {
        let set = [("LWS_GROUP_SIZE", "2"), ("LWS_WORKER_INDEX", "1"), ("LWS_LEADER_ADDRESS", "chat-0.chat")];
        assert_eq!(given(&set), ["--nnodes=2", "--node-rank=1", "--master-addr=chat-0.chat"]);
    }

    #[test]
    fn the_variable_of_a_flag_wins_and_an_empty_one_is_not_set() {
        assert_eq!(given(&[("GROUP_RANK", "1"), ("NODE_RANK", "0")]), [""; 0]);
        assert_eq!(given(&[("GROUP_RANK", "1"), ("NODE_RANK", "")]), ["--node-rank=1"]);
        assert_eq!(given(&[("GROUP_RANK", "")]), [""; 0]);
    }
}
