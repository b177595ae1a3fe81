//! Plans over several machines.

use super::tests::{num_shards, plan};
use super::*;

const NODES: &str =
    "--model-id m --nnodes 2 --master-addr 10.0.0.1 --replica-secret-file /secret --num-shard 2";

#[test]
fn a_node_has_its_ranks_of_all_and_what_they_need_to_meet_the_others() {
    let plan = plan(0, &format!("{NODES} --node-rank 1")).expect("plan");
    assert_eq!(plan.size(), (1, 4), "the supervisor has those of all nodes");
    assert_eq!(plan.devices, "the CPU in 2 shards of each of 2 nodes");
    let third = plan.spec(ProcessId::Shard { group: 0, rank: 2 }, StartOptions::default());
    assert_eq!(third.name, "shard 2");
    for flag in ["--rank=2", "--world-size=4", "--ranks-per-node=2", "--secret-file=/secret", "--threads=4"] {
        assert!(third.args.contains(&flag.to_owned()), "{flag} in {:?}", third.args);
    }
    assert!(third.args.contains(&"--uds-path=/tmp/penstock-x/shard-2.sock".to_owned()));
}

#[test]
fn the_router_reads_where_the_ranks_of_other_nodes_are() {
    let plan = plan(0, NODES).expect("plan");
    let files =
        ["shard-0.sock", "shard-1.sock"].map(|name| format!("--shard-sockets=/tmp/penstock-x/{name}"));
    let others =
        ["shard-2", "shard-3"].map(|name| format!("--shard-sockets=file:/tmp/penstock-x/{name}.address"));
    let sockets: Vec<_> = plan.router.args.into_iter().filter(|arg| arg.starts_with("--shard-s")).collect();
    assert_eq!(sockets, [files, others].concat());
}

#[test]
fn a_node_with_the_router_alone_needs_no_device_and_the_others_have_all_ranks() {
    let apart = format!("{NODES} --router-apart --device cuda");
    let router = plan(0, &apart).expect("plan");
    assert_eq!(router.size(), (1, 2));
    assert_eq!(router.devices, "the other nodes (shards: 2)");
    assert!(router.groups[0].is_empty());
    assert!(router.router.args.contains(&"--shard-sockets=file:/tmp/penstock-x/shard-0.address".to_owned()));
    let node = plan(2, &format!("{apart} --node-rank 1")).expect("plan");
    for flag in ["--rank=0", "--world-size=2", "--secret-file=/secret"] {
        assert!(node.groups[0][0].args.contains(&flag.to_owned()), "{flag} in {:?}", node.groups);
    }
}

#[test]
fn a_secret_for_replicas_is_no_matter_of_the_shards_of_one_machine() {
    let plan =
        plan(0, "--replica tcp:10.0.0.1:80 --replica-secret-file /secret --num-shard 2").expect("plan");
    let flags = &plan.groups[0][0].args;
    assert!(
        !flags.iter().any(|flag| flag.starts_with("--secret-file") || flag.starts_with("--ranks-per-node"))
    );
}

#[test]
fn a_node_has_whole_replicas_where_there_are_as_many_or_more() {
    let of_node = |node: u32| plan(4, &format!("{NODES} --num-replicas 4 --node-rank {node}")).expect("plan");
    let (first, second) = (of_node(0), of_node(1));
    assert_eq!(second.size(), (4, 2));
    assert_eq!(second.devices, "2 GPUs, 4 replicas on 2 nodes");
    let sizes = |plan: &Plan| plan.groups.iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!((sizes(&first), sizes(&second)), (vec![2, 2, 0, 0], vec![0, 0, 2, 2]));
    let last = plan_of(&second, 3, 1);
    assert_eq!(last.name, "replica 3 shard 1");
    for flag in ["--rank=1", "--world-size=2", "--first-gpu=2", "--num-replicas=2", "--secret-file=/secret"] {
        assert!(last.args.contains(&flag.to_owned()), "{flag} in {:?}", last.args);
    }
    let own = plan_of(&first, 1, 1);
    let of_tcp = |flag: &&String| flag.starts_with("--secret-file") || flag.starts_with("--ranks-per-node");
    assert_eq!(own.args.iter().find(of_tcp), None, "it meets its group on its own machine");
    assert!(own.args.contains(&"--uds-path=/tmp/penstock-x/shard-3.sock".to_owned()));
    let sockets: Vec<_> = first.router.args.iter().filter(|arg| arg.starts_with("--shard-s")).collect();
    assert_eq!(sockets.len(), 8);
    assert_eq!(sockets[3], "--shard-sockets=/tmp/penstock-x/shard-3.sock");
    assert_eq!(sockets[4], "--shard-sockets=file:/tmp/penstock-x/shard-4.address");
}

#[test]
fn a_replica_has_whole_nodes_where_there_are_more() {
    let nodes = NODES.replace("--nnodes 2", "--nnodes 4");
    let plan = plan(2, &format!("{nodes} --num-replicas 2 --node-rank 3")).expect("plan");
    assert_eq!(plan.size(), (2, 4));
    assert_eq!(plan.devices, "2 GPUs of each of 2 nodes, 2 replicas on 4 nodes");
    assert!(plan.groups[0].is_empty());
    let last = plan_of(&plan, 1, 3);
    for flag in
        ["--rank=3", "--world-size=4", "--ranks-per-node=2", "--uds-path=/tmp/penstock-x/shard-7.sock"]
    {
        assert!(last.args.contains(&flag.to_owned()), "{flag} in {:?}", last.args);
    }
    assert!(
        !last.args.iter().any(|flag| flag.starts_with("--num-replicas")),
        "it has the machine for itself"
    );
}

#[test]
fn replicas_on_several_nodes_hand_out_blocks_over_tcp() {
    let flags = format!("{NODES} --num-replicas 2 --role prefill,decode {TLS}");
    let of_node = |node: u32| plan(2, &format!("{flags} --node-rank {node}")).expect("plan");
    let (prefill, decode) = (plan_of(&of_node(0), 0, 0), plan_of(&of_node(1), 1, 0));
    for flag in ["--role=prefill", "--secret-file=/secret", "--tls-cert=/c"] {
        assert!(prefill.args.contains(&flag.to_owned()), "{flag} in {:?}", prefill.args);
    }
    assert!(decode.args.contains(&"--role=decode".to_owned()));
}

fn plan_of(plan: &Plan, group: usize, rank: usize) -> ProcessSpec {
    plan.spec(ProcessId::Shard { group, rank }, StartOptions::default())
}

const TLS: &str = "--replica-tls-cert /c --replica-tls-key /k --replica-tls-ca /a";

#[test]
fn shards_of_several_nodes_get_the_certificates() {
    let of_node = |flags: &str| plan(0, flags).expect("plan").groups[0][0].args.clone();
    let given = of_node(&format!("{NODES} {TLS}"));
    for flag in ["--tls-cert=/c", "--tls-key=/k", "--tls-ca=/a"] {
        assert!(given.contains(&flag.to_owned()), "{flag} in {given:?}");
    }
    let alone = of_node(&format!("--replica tcp:10.0.0.1:80 --num-shard 2 {TLS}"));
    assert!(!alone.iter().any(|flag| flag.starts_with("--tls")), "they listen on no TCP port");
}

#[test]
fn certificates_are_refused_where_nothing_goes_over_tcp() {
    let refused = |flags: &str| num_shards(0, &format!("{flags} {TLS}")).map_err(|error| error.to_string());
    for flags in ["", "--replica unix:/a.sock", "--num-replicas 2"] {
        let error = refused(flags).expect_err("refused");
        assert!(error.starts_with("--replica-tls-cert has no effect without --nnodes"), "{error}");
    }
    assert_eq!(refused("--admin-socket /a"), Ok(1), "replicas may come later");
    assert!(
        refused("--executor ray --nnodes 2").expect_err("refused").starts_with("--executor ray has no files")
    );
}

#[test]
fn nodes_that_could_not_find_or_trust_each_other_are_refused() {
    let refused = |flags: &str| num_shards(0, flags).expect_err("refused").to_string();
    assert_eq!(refused("--node-rank 1"), "--node-rank 1 must be below --nnodes 1");
    assert_eq!(refused(&format!("{NODES} --node-rank 2")), "--node-rank 2 must be below --nnodes 2");
    assert!(refused("--nnodes 2 --replica-secret-file /s").starts_with("--nnodes 2 needs --master-addr"));
    assert!(refused("--nnodes 2 --master-addr a").starts_with("--nnodes 2 needs --replica-secret-file"));
    let uneven = refused(&format!("{NODES} --num-replicas 3"));
    assert!(uneven.starts_with("--num-replicas 3 and --nnodes 2 do not fit"), "{uneven}");
}

#[test]
fn what_ray_decides_is_not_to_be_given() {
    let refused = |flags: &str| num_shards(0, &format!("--executor ray {flags}")).expect_err("refused");
    assert_eq!(refused("--nnodes 2 --node-rank 1"), PlanError::KnownToRay { flag: "node-rank" });
    assert_eq!(refused("--master-addr a"), PlanError::KnownToRay { flag: "master-addr" });
    assert_eq!(refused("--nnodes 64"), PlanError::TooManyForRay { count: 64 });
    assert_eq!(refused("--num-replicas 64"), PlanError::TooManyForRay { count: 64 });
    assert_eq!(num_shards(0, "--executor ray --nnodes 2"), Ok(2), "the nodes need no secret of the user's");
}

#[test]
fn all_shards_of_all_nodes_have_experts() {
    let node = "--nnodes 2 --node-rank 1 --master-addr 10.0.0.1 --replica-secret-file /s --num-shard 2";
    let told = |flags: &str| plan(2, &format!("{node} {flags}")).map(|plan| plan.groups[0][0].args.join(" "));
    assert!(told("--ep-size 4").expect("plan").contains("--expert-parallel=true"));
    assert_eq!(told("--ep-size 2"), Err(PlanError::ExpertGroups { asked: 2, ranks: 4 }));
}

#[test]
fn nodes_have_whole_stages_or_stages_whole_nodes() {
    let of_node = |nodes: u32, flags: &str| {
        let node = format!("--nnodes {nodes} --node-rank 1 --master-addr a --replica-secret-file /s");
        let plan = plan(0, &format!("{node} --pipeline-parallel-size {flags}"))?;
        Ok((plan.groups[0].len(), plan.size().1))
    };
    assert_eq!(of_node(2, "2"), Ok((1, 2)));
    assert_eq!(of_node(2, "2 --num-shard 2"), Ok((2, 4)));
    assert_eq!(of_node(2, "4 --num-shard 2"), Ok((4, 8)), "two stages on each");
    assert_eq!(of_node(4, "2 --num-shard 2"), Ok((2, 8)), "a stage of four shards over two");
    assert_eq!(of_node(2, "3"), Err(PlanError::StagesOverNodes { stages: 3, count: 2 }));
}
