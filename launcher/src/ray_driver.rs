//! `--executor ray`: this process becomes the driver (`penstock_server.cluster`), which has Ray place the nodes, and starts
//! a launcher on each: here one with the router alone, elsewhere those with the shards.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::Context;
use clap::CommandFactory;
use penstock_router::engine::replica_secret::ReplicaSecret;

use crate::args::{Args, name_of};
use crate::nodes::NodesError;
use crate::places::find_python;
use crate::plan::{contradiction, stages_here};
use crate::tgi::renamed_variables;
use crate::words;

/// Flags that are those of the router, and no matter of machines that have none: what they name is here.
const OF_ROUTER: [&str; 14] = [
    "hostname",
    "port",
    "uds",
    "grpc-port",
    "tls-cert",
    "tls-key",
    "api-key",
    "api-key-file",
    "admin-socket",
    "access-log",
    "access-log-addresses",
    "otlp-endpoint",
    "ray-address",
    "ray-placement-timeout",
];

/// Returns only if that fails, with the reason.
pub fn become_driver(args: &Args) -> anyhow::Error {
    match driver(args) {
        Ok(mut driver) => anyhow::Error::new(driver.exec()).context("cannot start the driver of Ray"),
        Err(error) => error,
    }
}

fn driver(args: &Args) -> anyhow::Result<Command> {
    if let Some(error) = contradiction(args) {
        return Err(error.into());
    }
    // The copy of the file that the launchers get has a name that the user does not know, so errors are reported here.
    if let Some(file) = &args.router.replicas.replica_secret_file {
        ReplicaSecret::read(file).map_err(NodesError::from)?;
    }
    let renamed = renamed_variables(|name| std::env::var_os(name));
    let renamed = renamed.into_iter().filter_map(|word| word.into_string().ok());
    let given: Vec<_> = renamed.chain(words::given()?).collect();
    let mut driver = Command::new(find_python().context("cannot find Python")?);
    driver.args(["-P", "-m", "penstock_server.cluster"]).args(flags(args, &given)?);
    Ok(driver)
}

fn flags(args: &Args, given: &[String]) -> anyhow::Result<Vec<String>> {
    let (nodes, shards) = (&args.nodes, &args.shards);
    let asked = if shards.sharded == Some(false) { Some(1) } else { shards.num_shard };
    let num_shards = asked.map(|of_stage| of_stage * stages_here(args));
    let secret = args.router.replicas.replica_secret_file.as_ref();
    let set = [
        ("num-nodes", Some(args.layout().num_nodes.to_string())),
        ("num-replicas", Some(shards.num_replicas.to_string())),
        ("num-shard", num_shards.map(|count| count.to_string())),
        ("device", Some(name_of(&shards.device))),
        ("master-port", Some(nodes.master_port.to_string())),
        ("ray-address", args.executor.ray_address.clone()),
        ("placement-timeout", Some(args.executor.ray_placement_timeout.to_string())),
        ("secret-file", secret.map(|file| file.display().to_string())),
        ("router-words", Some(serde_json::to_string(given)?)),
        ("node-words", Some(serde_json::to_string(&words::without(&OF_ROUTER, given))?)),
    ];
    let mut flags: Vec<_> =
        set.into_iter().filter_map(|(name, value)| Some(format!("--{name}={}", value?))).collect();
    flags.extend(args.router.log.json_output.then(|| "--json-output".to_owned()));
    flags.extend(variables().into_iter().map(|name| format!("--variable={name}")));
    Ok(flags)
}

/// Names of the variables that stand for flags here, and are to do so on the nodes.
fn variables() -> Vec<String> {
    let command = Args::command();
    let of_nodes =
        command.get_arguments().filter(|arg| !arg.get_long().is_some_and(|it| OF_ROUTER.contains(&it)));
    let names = of_nodes.filter_map(|arg| Some(arg.get_env()?.to_string_lossy().into_owned()));
    names.filter(|name| std::env::var(name).is_ok()).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn nodes_are_not_told_what_is_the_routers() {
        let line =
            "--executor ray --nnodes 2 --model-id m --api-key secret --port 80 --num-shard 4 --sharded false";
        let given: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        let args =
            Args::try_parse_from([vec!["launcher".to_owned()], given.clone()].concat()).expect("flags");
        let flags = flags(&args, &given).expect("flags");
        for flag in ["--num-nodes=2", "--num-shard=1", "--device=auto", "--placement-timeout=600"] {
            assert!(flags.contains(&flag.to_owned()), "{flag} in {flags:?}");
        }
        let of_nodes = flags.iter().find(|flag| flag.starts_with("--node-words")).expect("given");
        assert!(of_nodes.contains("--model-id") && !of_nodes.contains("secret") && !of_nodes.contains("80"));
        let of_router = flags.iter().find(|flag| flag.starts_with("--router-words")).expect("given");
        assert!(of_router.contains("secret") && of_router.contains("80"));
    }

    #[test]
    fn every_flag_of_the_router_exists() {
        let command = Args::command();
        let exists = |flag: &&str| command.get_arguments().any(|arg| arg.get_long() == Some(flag));
        assert!(OF_ROUTER.iter().all(exists));
    }
}
