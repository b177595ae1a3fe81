//! Between a proxy and the launcher that started it: the launcher changes the file of models, the proxy serves what it says,
//! and tells the launcher when it does, which of the former models no request needs any more, and that it is alive.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tracing::warn;

use super::models::Models;
use super::served::parse;
use crate::base::launcher_line::{ALIVE_EVERY, Line};

/// How often the file is looked at. A signal could come before the process can take it.
const PAUSE: Duration = Duration::from_millis(100);

/// Follows the launcher for ever, or waits if there is none.
pub async fn launcher(models: Models, file: Option<PathBuf>) {
    match file {
        Some(path) => tokio::join!(follow_file(&models, &path), tell_of_life()).0,
        None => std::future::pending().await,
    }
}

async fn tell_of_life() {
    loop {
        Line::Alive.write();
        tokio::time::sleep(ALIVE_EVERY).await;
    }
}

async fn follow_file(models: &Models, path: &Path) {
    let mut known = String::new();
    loop {
        match tokio::fs::read_to_string(path).await {
            Ok(text) if text != known => {
                serve_what(&text, models).await;
                known = text;
            }
            // It is replaced as a whole, so it is there unless the launcher is gone.
            Ok(_) | Err(_) => {}
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn serve_what(text: &str, models: &Models) {
    let entries = match parse(text) {
        Ok(entries) => entries,
        Err(reason) => return warn!(reason, "the file of models is broken"),
    };
    let numbers = entries.iter().map(|entry| entry.number).collect();
    let removed = models.replace(entries).await;
    Line::Models(numbers).write();
    for (number, upstreams) in removed {
        tokio::spawn(async move {
            upstreams.end().await;
            Line::Removed(number).write();
        });
    }
}
