//! The Grafana dashboard in deploy/ queries only metrics that `/metrics` has, and docs/observability.md lists all of them.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::support::server::Server;

const DASHBOARD: &str = include_str!("../../../deploy/grafana/penstock.json");
const PAGE: &str = include_str!("../../../docs/observability.md");

/// The names in a query that have the form of this server's metrics.
fn metrics_of(query: &str) -> impl Iterator<Item = &str> {
    query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| word.starts_with("tgi_"))
}

fn queries(dashboard: &Value) -> Vec<String> {
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().expect("targets"));
    let variables = dashboard["templating"]["list"].as_array().expect("variables");
    let texts =
        targets.map(|target| &target["expr"]).chain(variables.iter().map(|variable| &variable["query"]));
    texts.map(|text| text.as_str().expect("a text").to_owned()).collect()
}

#[tokio::test]
async fn every_query_is_about_an_existing_metric() {
    let text = Server::start().get("/metrics").await.text;
    let told: BTreeSet<&str> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split(['{', ' ']).next())
        .collect();
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("JSON");
    let queries = queries(&dashboard);
    assert!(queries.len() > 20, "{queries:?}");
    for query in &queries {
        for metric in metrics_of(query) {
            assert!(told.contains(metric), "{metric} in {query} is not in\n{text}");
        }
    }
    let asked = queries.iter().filter(|query| metrics_of(query).next().is_some()).count();
    assert_eq!(asked, queries.len() - 1, "all but the variable of the data source");
}

#[tokio::test]
async fn the_page_lists_exactly_the_metrics_and_the_reasons_of_failures() {
    let text = Server::start().get("/metrics").await.text;
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let reasons = text.lines().filter_map(|line| {
        line.strip_prefix("tgi_request_failure{err=\"")?.split_once('"').map(|(reason, _)| reason)
    });
    let (_, tables) = PAGE.split_once("## All metrics").expect("a heading");
    let (metrics, failures) = tables.split_once("| `err`").expect("a second table");
    let first_cell = |line: &'static str| line.strip_prefix("| `")?.split_once(" |").map(|(cell, _)| cell);
    let names = |table: &'static str| table.lines().filter_map(first_cell).flat_map(|cell| cell.split(", "));
    let listed = |table| names(table).map(|name| name.trim_matches('`')).collect::<BTreeSet<_>>();
    assert_eq!(listed(metrics), types.collect());
    assert_eq!(listed(failures), reasons.collect());
}
