//! The processes that follow from flags and devices.

use clap::Parser;

use super::*;
use crate::resolve::Resolved;

fn places() -> Places {
    Places {
        python: "/venv/bin/python".into(),
        router: "/venv/bin/penstock-router".into(),
        run_dir: "/tmp/penstock-x".into(),
        model: Resolved {
            folder: "/models/m".into(),
            tokenizer: "/models/m/tokenizer.json".into(),
            tokenizer_folder: None,
            draft: None,
            adapters: vec!["/adapters/one".into(), "/cache/two".into()],
        },
        parent_pipe_fd: 7,
    }
}

pub fn plan(num_gpus: u32, flags: &str) -> Result<Plan, PlanError> {
    let args = Args::try_parse_from(["launcher"].into_iter().chain(flags.split_whitespace())).expect("flags");
    Plan::new(&args, &Hardware { num_gpus, num_cpus: 8 }, &places())
}

pub fn num_shards(num_gpus: u32, flags: &str) -> Result<usize, PlanError> {
    plan(num_gpus, flags).map(|plan| plan.size().1)
}

#[test]
fn a_named_model_takes_every_gpu_and_the_demo_model_takes_one() {
    assert_eq!(num_shards(4, "--model-id m"), Ok(4));
    assert_eq!(num_shards(4, "--model-id m --sharded false"), Ok(1));
    assert_eq!(num_shards(4, ""), Ok(1));
    assert_eq!(num_shards(0, "--model-id m"), Ok(1));
}

#[test]
fn contradictory_flags_are_refused() {
    assert_eq!(num_shards(0, "--device cuda"), Err(PlanError::NoGpu));
    assert_eq!(num_shards(1, "--num-shard 2"), Err(PlanError::TooFewGpus { asked: 2, visible: 1 }));
    assert_eq!(num_shards(0, "--sharded true"), Err(PlanError::NothingToShard { found: 1 }));
    assert_eq!(num_shards(0, "--sharded false --num-shard 2"), Err(PlanError::ShardedOff { asked: 2 }));
    let limits = "--max-input-tokens 9 --max-total-tokens 9";
    assert_eq!(num_shards(0, limits), Err(PlanError::InputTooLong { input: 9, total: 9 }));
    let pause = "--target-itl-ms 50 --prefer throughput";
    assert_eq!(num_shards(0, pause), Err(PlanError::PauseBeyondTarget(50)));
    assert_eq!(num_shards(0, "--target-itl-ms 50 --prefer latency"), Ok(1));
    assert_eq!(num_shards(0, "--speculation draft"), Err(PlanError::NoDraftModel));
    for other in ["", "--speculate 3", "--speculation ngram"] {
        let refused = num_shards(0, &format!("--draft-model /d {other}"));
        assert_eq!(refused, Err(PlanError::UnusedDraftModel("/d".into())), "{other}");
    }
    for other in ["", "--speculate 3", "--speculation ngram", "--speculation draft --draft-model /d"] {
        let refused = num_shards(0, &format!("--speculate-branches 2 {other}"));
        assert_eq!(refused, Err(PlanError::UnusedBranches(2)), "{other}");
    }
}

#[test]
fn the_draft_model_is_looked_for_where_tokens_are_drafted_and_the_shards_get_its_folder() {
    for (flags, is_used) in [("", true), ("--speculate 2", true), ("--speculate 0", false)] {
        let line = format!("launcher --num-shard 2 --speculation draft --draft-model org/d@v1 {flags}");
        let args = Args::try_parse_from(line.split_whitespace()).expect("flags");
        let draft = args.draft_model().map(|_| "/cache/d".into());
        assert_eq!(args.draft_model(), is_used.then_some("org/d@v1"), "{flags}");
        let model = Resolved { draft, ..places().model };
        let places = Places { model, ..places() };
        let plan = Plan::new(&args, &Hardware { num_gpus: 0, num_cpus: 8 }, &places).expect("plan");
        for shard in plan.groups.iter().flatten() {
            assert_eq!(shard.args.contains(&"--draft-model=/cache/d".to_owned()), is_used, "{flags}");
        }
    }
}

#[test]
fn the_shards_are_told_how_tokens_are_drafted() {
    let cases = [
        ("", None),
        ("--speculation ngram", None),
        ("--speculation suffix", Some("--drafter=suffix")),
        ("--speculation mtp --speculate 1", Some("--drafter=mtp")),
        ("--speculation mtp --speculate 0", None),
    ];
    for (flags, expected) in cases {
        let plan = plan(0, flags).expect("plan");
        for shard in plan.groups.iter().flatten() {
            let told = shard.args.iter().find(|arg| arg.starts_with("--drafter"));
            assert_eq!(told.map(String::as_str), expected, "{flags}");
        }
    }
    let plan = plan(0, "--speculation eagle --speculate-branches 3").expect("plan");
    assert!(plan.groups[0][0].args.contains(&"--draft-branches=3".to_owned()));
}

#[test]
fn heads_beside_the_model_draft_unless_another_way_is_asked_for() {
    let cases = [
        ("--speculate 3", true, None),
        ("--speculation medusa", true, Some("medusa")),
        ("--speculation eagle", true, Some("eagle")),
        ("--speculation mtp", true, Some("mtp")),
        ("--speculation ngram", false, None),
        ("--speculation suffix", false, None),
        ("", false, None),
        ("--speculation medusa --speculate 0", false, None),
    ];
    for (flags, is_used, heads) in cases {
        let line = format!("launcher {flags}");
        let args = Args::try_parse_from(line.split_whitespace()).expect("flags");
        assert_eq!(args.heads(), heads, "{flags}");
        let model = Resolved { draft: Some("/m/medusa".into()), ..places().model };
        let places = Places { model, ..places() };
        let plan = Plan::new(&args, &Hardware { num_gpus: 0, num_cpus: 8 }, &places).expect("plan");
        for shard in plan.groups.iter().flatten() {
            assert_eq!(shard.args.contains(&"--draft-model=/m/medusa".to_owned()), is_used, "{flags}");
        }
    }
}

#[test]
fn the_router_gets_the_folders_of_adapters_and_a_file_to_record_them() {
    let plan = plan(0, "--lora-adapters one=one,two=org/two@v1").expect("plan");
    for flag in [
        "--lora-adapters=one=/adapters/one",
        "--lora-adapters=two=/cache/two",
        "--adapter-record=/tmp/penstock-x/adapters.json",
        "--condition-record=/tmp/penstock-x/condition.json",
    ] {
        assert!(plan.router.args.contains(&flag.to_owned()), "{flag} in {:?}", plan.router.args);
    }
}

#[test]
fn ranks_of_a_group_differ_only_in_rank_and_socket() {
    let plan = plan(0, "--num-shard 2 --max-batch-total-tokens 100").expect("plan");
    let [first, second] = &plan.groups[0][..] else { panic!("two shards") };
    let differing = first.args.iter().zip(&second.args).filter(|(a, b)| a != b).count();
    assert_eq!(differing, 2);
    assert!(first.args.contains(&"--world-size=2".to_owned()));
    assert!(first.args.contains(&"--num-blocks=7".to_owned()));
    assert!(first.args.contains(&"--threads=4".to_owned()));
    assert!(!first.args.iter().any(|arg| arg.starts_with("--dtype")));
}

#[test]
fn flags_of_gpus_are_passed_on_only_if_they_were_given() {
    let of_gpu = |flags: &str| -> Vec<String> {
        let plan = plan(0, flags).expect("plan");
        plan.groups[0][0].args.iter().filter(|arg| arg.starts_with("--cuda")).cloned().collect()
    };
    assert!(of_gpu("").is_empty());
    assert_eq!(of_gpu("--cuda-graphs 1,2,8"), ["--cuda-graphs=1,2,8"]);
    assert_eq!(of_gpu("--cuda-graphs 0"), ["--cuda-graphs=0"]);
    assert_eq!(of_gpu("--cuda-memory-fraction 0.5"), ["--cuda-memory-fraction=0.5"]);
    for wrong in ["--cuda-memory-fraction 0", "--cuda-memory-fraction 1.5", "--cuda-graphs x"] {
        assert!(Args::try_parse_from(["launcher"].into_iter().chain(wrong.split_whitespace())).is_err());
    }
}

#[test]
fn shards_get_the_type_of_their_cache_and_the_attention_backend() {
    let shard = |flags: &str| plan(0, flags).expect("plan").groups[0][0].args.join(" ");
    assert!(shard("").contains(
        "--kv-cache-dtype=auto --quantize-cache-gb=200 --attention-backend=auto --all-reduce=auto --cpu-activations=auto"
    ));
    assert!(shard("--all-reduce nccl").contains("--all-reduce=nccl"));
    assert!(shard("--cpu-activations int8").contains("--cpu-activations=int8"));
    assert!(shard("").contains("--gpu-activations=float"));
    assert!(shard("--gpu-activations 8bit").contains("--gpu-activations=8bit"));
    let chosen = shard("--kv-cache-dtype fp8_e4m3fn --attention-backend flashinfer");
    assert!(chosen.contains("--kv-cache-dtype=fp8_e4m3fn --"), "{chosen}");
    assert!(chosen.contains("--attention-backend=flashinfer"), "{chosen}");
    let refused = Args::try_parse_from(["launcher", "--kv-cache-dtype", "fp8_e5m2"]).expect_err("refused");
    assert!(refused.to_string().contains("fp8_e5m2"));
}

#[test]
fn shards_are_told_how_to_quantize_if_it_was_said() {
    let shard = |flags: &str| plan(0, flags).expect("plan").groups[0][0].args.join(" ");
    assert!(!shard("").contains("--quantize=") && !shard("--quantize=").contains("--quantize="));
    assert!(shard("--quantize bitsandbytes-nf4").contains("--quantize=bitsandbytes-nf4"));
    assert!(shard("--quantize compressed-tensors").contains("--quantize=compressed-tensors"));
    assert!(shard("--quantize int8").contains("--quantize=int8 --quantize-cache-gb=200 "));
    let kept = shard("--quantize int8 --quantize-cache /kept --quantize-cache-gb 0");
    assert!(kept.contains("--quantize=int8 --quantize-cache=/kept --quantize-cache-gb=0 "), "{kept}");
    let refused = Args::try_parse_from(["launcher", "--quantize", "q4_k_m"]).expect_err("refused");
    assert!(refused.to_string().contains("q4_k_m") && refused.to_string().contains("eetq"), "{refused}");
}

#[test]
fn shards_decide_where_experts_are_unless_it_was_said_by_any_name() {
    let told = |flags: &str| -> Result<Option<String>, PlanError> {
        let plan = plan(4, &format!("--num-shard 4 {flags}"))?;
        Ok(plan.groups[0][3].args.iter().find(|arg| arg.starts_with("--expert-parallel")).cloned())
    };
    let (on, off) = ("--expert-parallel=true", "--expert-parallel=false");
    let cases = [
        ("", None),
        ("--expert-parallel", Some(on)),
        ("--enable-expert-parallel", Some(on)),
        ("--expert-parallel yes", Some(on)),
        ("--ep-size 4", Some(on)),
        ("--ep 4", Some(on)),
        ("--expert-parallel-size=4", Some(on)),
        ("--expert-parallel=false", Some(off)),
        ("--ep-size 1", Some(off)),
    ];
    for (flags, expected) in cases {
        assert_eq!(told(flags).expect("plan").as_deref(), expected, "{flags}");
    }
    let refused = told("--ep-size 2").expect_err("refused");
    assert_eq!(refused, PlanError::ExpertGroups { asked: 2, ranks: 4 });
    assert!(refused.to_string().starts_with("--ep-size 2 does not fit 4 shards: "), "{refused}");
    let both = ["launcher", "--expert-parallel", "--ep-size", "4"];
    assert!(Args::try_parse_from(both).expect_err("refused").to_string().contains("--ep-size"));
}

#[test]
fn stages_are_shards_that_are_counted_with_the_others() {
    let pp = "--model-id m --pipeline-parallel-size";
    assert_eq!(num_shards(0, &format!("{pp} 3")), Ok(3));
    assert_eq!(num_shards(0, &format!("{pp} 3 --num-shard 2")), Ok(6));
    assert_eq!(num_shards(5, &format!("{pp} 2")), Ok(4), "every GPU, as many for each stage");
    assert_eq!(num_shards(8, &format!("{pp} 2 --num-shard 2 --num-replicas 2")), Ok(4));
    let shard = plan(0, &format!("{pp} 3 --num-shard 2")).expect("plan").groups[0][5].args.join(" ");
    for flag in ["--rank=5 ", "--world-size=6 ", "--num-stages=3 ", "--threads=4"] {
        assert!(shard.contains(flag), "{flag} in {shard}");
    }
    let refused = |gpus, flags: &str| num_shards(gpus, &format!("{pp} {flags}")).expect_err("refused");
    assert_eq!(refused(2, "3"), PlanError::TooFewGpusForStages { stages: 3, shards: 1, visible: 2 });
    let too_many = refused(3, "2 --num-shard 2");
    assert!(too_many.to_string().contains("2 stages here of 2 shards each, which need 4 GPUs"), "{too_many}");
    let of_replicas = refused(7, "2 --num-shard 2 --num-replicas 2");
    assert_eq!(of_replicas, PlanError::TooFewGpusForReplicas { replicas: 2, shards: 4, visible: 7 });
    assert_eq!(refused(0, "2 --sharded false"), PlanError::StagesOff { stages: 2 });
    assert_eq!(refused(0, "2 --num-shard 4 --ep-size 8"), PlanError::ExpertGroups { asked: 8, ranks: 4 });
}

#[test]
fn shards_are_told_how_many_tokens_a_step_drafts() {
    let shard = |flags: &str| plan(0, flags).expect("plan").groups[0][0].args.join(" ");
    assert!(!shard("").contains("max-draft"));
    assert!(!shard("--speculation ngram --speculate 0").contains("max-draft"));
    assert!(shard("--speculation ngram").contains("--max-drafts=4 --max-drafting=8 "));
    assert!(shard("--speculate 3 --speculate-max 300").contains("--max-drafts=3 --max-drafting=128 "));
    assert!(shard("--speculate 3 --max-batch-size 2").contains("--max-drafts=3 --max-drafting=2 "));
}

#[test]
fn shards_are_told_who_serves_their_end_of_the_wire() {
    let shard = |flags: &str| plan(0, flags).expect("plan").groups[0][0].args.join(" ");
    assert!(shard("").contains("--endpoint=auto"));
    assert!(shard("--endpoint grpcio").contains("--endpoint=grpcio"));
}

#[test]
fn the_router_gets_the_sockets_in_order_of_rank() {
    let plan = plan(0, "--num-shard 2").expect("plan");
    let sockets: Vec<_> = plan.router.args.iter().filter(|arg| arg.starts_with("--shard-sockets")).collect();
    assert_eq!(
        sockets,
        ["--shard-sockets=/tmp/penstock-x/shard-0.sock", "--shard-sockets=/tmp/penstock-x/shard-1.sock"]
    );
    assert!(plan.router.args.contains(&"--model-id=penstock-demo".to_owned()));
}

#[test]
fn replicas_get_the_gpus_in_order_and_the_router_their_sockets() {
    let plan = plan(4, "--model-id m --num-replicas 2").expect("plan");
    assert_eq!(plan.size(), (2, 2), "two of the four GPUs for each");
    assert_eq!(plan.devices, "2 GPUs, 2 replicas");
    let flags = |group: usize, start: &str| -> Vec<String> {
        let all = plan.groups[group].iter().flat_map(|shard| &shard.args);
        all.filter(|arg| arg.starts_with(start)).cloned().collect()
    };
    assert_eq!(flags(0, "--first-gpu"), [""; 0]);
    assert_eq!(flags(1, "--first-gpu"), ["--first-gpu=2"; 2]);
    assert_eq!(flags(0, "--num-replicas"), ["--num-replicas=2"; 2]);
    assert_eq!(flags(1, "--rank"), ["--rank=0", "--rank=1"]);
    assert_eq!(flags(1, "--threads"), ["--threads=2"; 2], "of eight cores");
    let name = &plan.groups[1][1].name;
    assert_eq!(name, "replica 1 shard 1");
    let second = plan.spec(ProcessId::Shard { group: 1, rank: 0 }, StartOptions::default());
    assert!(second.args.contains(&"--rendezvous-dir=/tmp/penstock-x/group-1-0".to_owned()));
    let sockets = plan.router.args.iter().filter(|arg| arg.starts_with("--shard-sockets=")).count();
    assert_eq!(sockets, 4);
    assert!(plan.router.args.contains(&"--num-replicas=2".to_owned()));
}

#[test]
fn replicas_need_a_gpu_for_every_shard_of_each() {
    assert_eq!(plan(0, "--num-replicas 3").map(|plan| plan.size()), Ok((3, 1)), "a CPU has no limit");
    assert_eq!(plan(3, "--model-id m --num-replicas 2").map(|plan| plan.size()), Ok((2, 1)));
    let refused =
        |replicas, shards, visible| Err(PlanError::TooFewGpusForReplicas { replicas, shards, visible });
    assert_eq!(num_shards(2, "--num-replicas 3"), refused(3, 1, 2));
    assert_eq!(num_shards(4, "--num-replicas 2 --num-shard 3"), refused(2, 3, 4));
    let error = plan(4, "--num-replicas 2 --num-shard 3").expect_err("refused").to_string();
    assert!(error.starts_with("--num-replicas 2 of 3 shards each need 6 GPUs, but 4 are visible"), "{error}");
}

#[test]
fn replicas_of_others_are_passed_to_the_router() {
    let plan =
        plan(0, "--replica unix:/a.sock --replica unix:/b/0:/b/1 --replica tcp:10.0.0.1:80").expect("plan");
    for flag in ["--replica=unix:/a.sock", "--replica=unix:/b/0:/b/1", "--replica=tcp:10.0.0.1:80"] {
        assert!(plan.router.args.contains(&flag.to_owned()), "{flag}");
    }
    let refused = Args::try_parse_from(["launcher", "--replica", "tcp:10.0.0.1"]).expect_err("refused");
    assert!(refused.to_string().contains("tcp:10.0.0.1"), "{refused}");
}

#[test]
fn a_restarted_group_has_a_new_rendezvous_folder_and_keeps_the_size_of_its_cache() {
    let plan = plan(0, "--num-shard 2").expect("plan");
    let first = plan.spec(ProcessId::Shard { group: 0, rank: 1 }, StartOptions::default());
    assert_eq!(first.args.last().map(String::as_str), Some("--rendezvous-dir=/tmp/penstock-x/group-0-0"));
    let cache = Some(CacheSize { num_blocks: 70, block_size: 16 });
    let second = plan.spec(ProcessId::Shard { group: 0, rank: 1 }, StartOptions { num_restarts: 1, cache });
    let added = &second.args[first.args.len() - 1..];
    assert_eq!(added, ["--rendezvous-dir=/tmp/penstock-x/group-0-1", "--num-blocks=70", "--block-size=16"]);
}

#[test]
fn socket_paths_that_are_too_long_for_linux_are_refused() {
    let places = Places { run_dir: PathBuf::from("/tmp").join("x".repeat(100)), ..places() };
    let args = Args::try_parse_from(["launcher"]).expect("flags");
    let error = Plan::new(&args, &Hardware { num_gpus: 0, num_cpus: 1 }, &places).expect_err("too long");
    assert!(matches!(error, PlanError::SocketPathTooLong(_)));
}

#[test]
fn shards_get_what_replaces_parts_of_the_configuration_and_the_level_of_their_logs() {
    let shard = |flags: &str| plan(0, flags).expect("plan").groups[0][0].args.clone();
    let args = shard(
        "--rope-factor 2 --override-generation-config {\"top_k\":4} --log-level warn,penstock_server=debug",
    );
    for flag in [
        "--rope-scaling=linear",
        "--rope-factor=2",
        "--override-generation-config={\"top_k\":4}",
        "--log-level=debug",
    ] {
        assert!(args.contains(&flag.to_owned()), "{flag}");
    }
    assert!(!shard("").iter().any(|arg| arg.starts_with("--rope") || arg.starts_with("--override")));
    assert!(shard("").contains(&"--log-level=info".to_owned()));
    assert!(Args::try_parse_from(["launcher", "--override-generation-config=[]"]).is_err());
}
