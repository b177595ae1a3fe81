//! The models that are served, each with its upstreams, and which of them a request is for.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::error::ProxyError;
use super::health;
use super::metrics::ProxyMetrics;
use super::options::ProxyConfig;
use super::served::ServedEntry;
use super::upstream::{Settings, Upstreams};
use super::wanted::Wanted;
use crate::base::error::Error;
use crate::inference::served_model::{ModelNames, ServedModel};

/// The models. Cheap to clone.
#[derive(Clone)]
pub struct Models(Arc<Shared>);

struct Shared {
    settings: Settings,
    check_interval: Duration,
    served: RwLock<Vec<Model>>,
}

/// A model, whose upstreams are looked at until it is dropped.
struct Model {
    entry: ServedEntry,
    /// Its names; `None` if every request is for it.
    names: Option<ServedModel>,
    upstreams: Upstreams,
    _checks: JoinSet<()>,
}

impl Models {
    /// The models of the flags. Each upstream was looked at once.
    pub async fn start(config: &ProxyConfig, metrics: &ProxyMetrics) -> Result<Self, ProxyError> {
        let entries = config.served()?;
        let models = Self(Arc::new(Shared {
            settings: Settings::new(config, metrics)?,
            check_interval: Duration::from_secs(config.upstream_check_interval),
            served: RwLock::default(),
        }));
        models.replace(entries).await;
        Ok(models)
    }

    /// From now on these are served. Those that were before and are among them stay as they are; returns the others, which
    /// get no new requests. One that was yet to be loaded has none, and may be served under its number now.
    pub async fn replace(&self, entries: Vec<ServedEntry>) -> Vec<(usize, Upstreams)> {
        let mut all = Vec::new();
        for entry in &entries {
            if !self.read().iter().any(|model| model.entry == *entry) {
                all.push(self.model(entry.clone()).await);
            }
        }
        let mut served = self.0.served.write().unwrap_or_else(PoisonError::into_inner);
        all.append(&mut served);
        for entry in entries {
            let place = all.iter().position(|model| model.entry == entry);
            served.extend(place.map(|place| all.swap_remove(place)));
        }
        let served_before = all.into_iter().filter(|model| !model.entry.is_loading());
        served_before.map(|model| (model.entry.number, model.upstreams)).collect()
    }

    /// Starts to look at the upstreams of a model.
    async fn model(&self, entry: ServedEntry) -> Model {
        let upstreams = Upstreams::new(&entry, &self.0.settings);
        let checks = if entry.is_loading() {
            JoinSet::new()
        } else {
            health::watch_all(&upstreams, self.0.check_interval).await
        };
        let flags = ModelNames { served_model_name: entry.names.clone(), accept_any_model: false };
        let names = entry.names.first().map(|own| ServedModel::new(own, &flags));
        Model { entry, names, upstreams, _checks: checks }
    }

    /// The upstreams of the model that a request is for: the one that it names, or the first.
    pub fn find(&self, wanted: &Wanted) -> Result<Upstreams, Error> {
        let all = self.read();
        let served: Vec<_> = all.iter().filter(|model| !model.entry.is_loading()).collect();
        let named = |name: &str| served.iter().find(|model| model.is_named(name));
        let found = match (&wanted.model, &wanted.adapter) {
            (Some(name), _) => named(name).or_else(|| served.iter().find(|model| model.may_mean(name))),
            (None, Some(adapter)) => named(adapter).or(served.first()),
            (None, None) => served.first(),
        };
        match (found, &wanted.model) {
            (Some(model), _) => Ok(model.upstreams.clone()),
            (None, Some(name)) => Err(unknown(name, &served)),
            (None, None) => Err(Error::NoUpstream),
        }
    }

    /// Rung when a model with a budget is given a request, or has answered one.
    pub fn bell(&self) -> Arc<Notify> {
        self.0.settings.bell()
    }

    /// The upstreams of each model.
    pub fn all(&self) -> Vec<Upstreams> {
        let served = self.read();
        let loaded = served.iter().filter(|model| !model.entry.is_loading());
        loaded.map(|model| model.upstreams.clone()).collect()
    }

    /// The upstreams of all models, also of those that are yet to be loaded.
    pub fn loaded_or_loading(&self) -> Vec<Upstreams> {
        self.read().iter().map(|model| model.upstreams.clone()).collect()
    }

    /// Whether a model has an upstream that takes requests.
    pub fn any_is_up(&self) -> bool {
        self.read().iter().any(|model| model.upstreams.any_is_up())
    }

    fn read(&self) -> RwLockReadGuard<'_, Vec<Model>> {
        self.0.served.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Model {
    /// Whether it has this name.
    fn is_named(&self, name: &str) -> bool {
        self.entry.names.iter().any(|own| own == name)
    }

    /// Whether a server with this model alone would take it for its own.
    fn may_mean(&self, name: &str) -> bool {
        self.names.as_ref().is_none_or(|names| names.check(Some(name)).is_ok())
    }
}

fn unknown(name: &str, served: &[&Model]) -> Error {
    let served = served.iter().flat_map(|model| model.entry.names.iter().cloned()).collect();
    Error::UnknownModel { name: name.chars().take(200).collect(), served }
}

#[cfg(test)]
mod tests {
    use super::super::served::Rest;
    use super::*;

    fn entry(number: usize, is_loading: bool) -> ServedEntry {
        let rest = Rest { admin_socket: "/a".into(), devices: Vec::new(), is_loading };
        // Nobody listens there.
        let upstreams = vec!["http://127.0.0.1:1".parse().unwrap()];
        ServedEntry { number, names: vec![format!("m{number}")], upstreams, rest: Some(rest) }
    }

    #[tokio::test]
    async fn a_model_that_was_loaded_has_not_gone() {
        let config = ProxyConfig::of_upstream("http://127.0.0.1:1");
        let models = Models::start(&config, &ProxyMetrics::new().unwrap()).await.unwrap();
        models.replace(vec![entry(1, false), entry(2, true)]).await;
        let numbers = |gone: Vec<(usize, Upstreams)>| gone.into_iter().map(|it| it.0).collect::<Vec<_>>();
        assert_eq!(numbers(models.replace(vec![entry(1, false), entry(2, false)]).await), [0; 0]);
        assert_eq!(models.all().len(), 2);
        assert_eq!(numbers(models.replace(vec![entry(1, false)]).await), [2]);
        models.replace(vec![entry(1, false), entry(3, true)]).await;
        assert_eq!(numbers(models.replace(vec![entry(1, false)]).await), [0; 0], "it could not be loaded");
    }
}
