//! Weights from a trainer: what the routes say, which hosts a shard may be told of, and who may call.

use axum::http::StatusCode;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::server::Server;

const INIT: &str = "/init_weights_update_group";
const UPDATE: &str = "/update_weights_from_distributed";
const DESTROY: &str = "/destroy_weights_update_group";

fn server() -> (Server, TempDir) {
    let root = tempfile::tempdir().expect("a folder");
    let mut server = Server::start();
    server.state.is_model_open = true;
    server.state.weights_rules.root = Some(root.path().to_owned());
    (server, root)
}

/// With other fields than those that work.
fn with(body: &Value, more: &Value) -> Value {
    let mut body = body.clone();
    let more = more.as_object().expect("an object").clone();
    body.as_object_mut().expect("an object").extend(more);
    body
}

fn init() -> Value {
    json!({ "master_address": "trainer", "master_port": 29600, "rank_offset": 1, "world_size": 3, "group_name": "g" })
}

/// A tensor, behind which so many are missing.
fn tensor(name: &str, missing: u64) -> Value {
    json!({ "names": [name], "dtypes": ["torch.bfloat16"], "shapes": [[missing, 2]], "group_name": "g" })
}

#[tokio::test]
async fn the_last_tensor_has_the_weights_used() {
    let (server, _root) = server();
    let met = server.post(INIT, init()).await;
    assert_eq!((met.status, &met.json()["success"]), (StatusCode::OK, &json!(true)), "{}", met.text);
    let part = server.post(UPDATE, tensor("a", 2)).await.json();
    assert_eq!((&part["missing"], &part["weights_number"]), (&json!(2), &json!(0)));
    assert_eq!(part["message"], "2 tensors are yet to come, b among them");
    let body = with(&tensor("b", 0), &json!({ "weight_version": "step 1", "flush_cache": true }));
    let whole = server.post(UPDATE, body).await.json();
    assert_eq!((&whole["missing"], &whole["weights_number"]), (&json!(0), &json!(1)));
    assert_eq!(whole["weights_version"], "step 1");
    assert_eq!(server.get("/info").await.json()["weights_version"], "step 1");
    let other = server.post(DESTROY, json!({})).await;
    assert!(other.text.contains("in no group `weight_update_group`"), "{}", other.text);
    let left = server.post(DESTROY, json!({ "group_name": "g" })).await;
    assert_eq!(left.status, StatusCode::OK, "{}", left.text);
    let again = server.post(DESTROY, json!({ "group_name": "g" })).await;
    assert!(again.text.contains("in no group `g`"), "{}", again.text);
}

#[tokio::test]
async fn what_a_trainer_says_is_checked() {
    let (server, root) = server();
    server.post(INIT, init()).await;
    let bad_init = |more: Value| (INIT, with(&init(), &more));
    let bad_update = |more: Value| (UPDATE, with(&tensor("a", 0), &more));
    for ((path, body), message) in [
        (bad_init(json!({ "master_address": "10.0.0.7" })), "must be one of --trainer-host"),
        (bad_init(json!({ "master_port": 0 })), "`master_port` must be from 1 to 65535"),
        (bad_init(json!({ "master_port": 70_000 })), "master_port"),
        (bad_init(json!({ "backend": "nccl" })), "`backend` must be gloo"),
        (bad_init(json!({ "rank_offset": 0 })), "`rank_offset` must be at least 1"),
        (bad_init(json!({ "world_size": 2 })), "2 shards. Given: 1 and 2"),
        (bad_init(json!({ "rank_offset": u32::MAX })), "Given: 4294967295 and 3"),
        (bad_init(json!({ "group_name": "" })), "`group_name` must have 1 to 128 bytes"),
        (bad_update(json!({ "names": [], "dtypes": [], "shapes": [] })), "at least one name"),
        (bad_update(json!({ "names": ["a", "b"] })), "`dtypes` must be as long as `names`, 2. Given: 1"),
        (bad_update(json!({ "shapes": [] })), "`shapes` must be as long as `names`, 1. Given: 0"),
        (bad_update(json!({ "shapes": [[-1]] })), "shapes"),
        (bad_update(json!({ "dtypes": ["complex64"] })), "Given: complex64"),
        (bad_update(json!({ "load_format": "flattened_bucket" })), "`load_format` is not supported"),
        (bad_update(json!({ "weight_version": "" })), "`weight_version` must have 1 to 128 bytes"),
        (bad_update(json!({ "group_name": "other" })), "in no group `other`"),
    ] {
        let refused = server.post(path, body.clone()).await;
        assert_eq!(refused.status.as_u16(), 422, "{body}: {}", refused.text);
        assert!(refused.text.contains(message), "{body}: {}", refused.text);
    }
    assert_eq!(server.post(UPDATE, tensor("a", 1)).await.status, StatusCode::OK, "the group is there");
    std::fs::create_dir(root.path().join(".received-1")).unwrap();
    let half = server.post("/update_weights", json!({ "path": ".received-1" })).await;
    assert!(half.text.contains("below --weights-root"), "what is being received is no folder: {}", half.text);
}

#[tokio::test]
async fn after_a_failure_there_is_no_group_and_the_weights_stay() {
    let (server, _root) = server();
    for (name, status, message) in [
        ("wrong", 422, "tensor wrong is not in the weights in use; the group has ended"),
        ("gone", 503, "the group has ended: the trainer is gone"),
        ("lost", 503, "a shard does not answer"),
    ] {
        assert_eq!(server.post(INIT, init()).await.status, StatusCode::OK);
        let failed = server.post(UPDATE, tensor(name, 0)).await;
        assert_eq!(failed.status.as_u16(), status, "{}", failed.text);
        assert!(failed.text.contains(message) && !failed.text.contains("10.0.0.1"), "{}", failed.text);
        let after = server.post(UPDATE, tensor("a", 0)).await;
        assert!(after.text.contains("in no group `g`"), "{}", after.text);
    }
    let late = server.post(INIT, with(&init(), &json!({ "master_port": 9 }))).await;
    assert_eq!(late.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(late.text.contains("did not meet within 300 s"), "{}", late.text);
    assert_eq!(server.get("/info").await.json()["weights_number"], 0);
}

#[tokio::test]
async fn only_callers_who_may_and_only_with_a_root() {
    let (mut server, _root) = server();
    server.post(INIT, init()).await;
    server.state.weights_rules.root = None;
    let rootless = server.post(UPDATE, tensor("a", 0)).await;
    assert_eq!(rootless.status, StatusCode::FORBIDDEN);
    assert!(rootless.text.contains("--weights-root"), "{}", rootless.text);
    server.state.is_model_open = false;
    for (path, body) in [(INIT, init()), (UPDATE, tensor("a", 0)), (DESTROY, json!({}))] {
        let closed = server.post(path, body).await;
        assert_eq!(closed.status, StatusCode::FORBIDDEN, "{path}: {}", closed.text);
    }
}
