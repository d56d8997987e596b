//! Reads over many rollouts: lists, counts, figures, and what changes.

use std::sync::Arc;

use tokio::sync::broadcast;

use rollcage_model::browse::figures::{Dimension, FiguresPage};
use rollcage_model::browse::rollout::{Facets, RolloutPage, RolloutRow};

use super::{Engine, EngineError, Removal};
use crate::dispatch::RolloutEntry;
use crate::listing::{self, Filter, IndexTail, Window};
use crate::store::{StoreError, Summary};

impl Engine {
    /// Lists the owner's rollouts and those without an owner.
    pub async fn list(
        &self,
        owner: &str,
        filter: Filter,
        window: Window,
    ) -> Result<RolloutPage, EngineError> {
        let view = move |matching| listing::page(matching, &window);
        self.view(owner, filter, view).await
    }

    /// Counts the same rollouts by what they have.
    pub async fn facets(&self, owner: &str, filter: Filter) -> Result<Facets, EngineError> {
        self.view(owner, filter, |matching| listing::facets(&matching))
            .await
    }

    /// Figures of the same rollouts, put together by the given dimensions; one page of them.
    pub async fn figures(
        &self,
        owner: &str,
        filter: Filter,
        by: Vec<Dimension>,
        start: usize,
        limit: usize,
    ) -> Result<FiguresPage, EngineError> {
        let view = move |matching: Vec<_>| listing::figures(&matching, &by, start, limit);
        self.view(owner, filter, view).await
    }

    /// The rollouts in memory that belong to `owner` or to nobody.
    pub fn known(&self, owner: &str) -> Vec<Arc<RolloutEntry>> {
        let mut known = self.dispatcher.all();
        known.retain(|entry| entry.owner.as_deref().is_none_or(|own| own == owner));
        known
    }

    /// Another number whenever something happened to a rollout in memory, so that whoever looks at all of them again and
    /// again need not while nothing did.
    pub fn changes(&self) -> u64 {
        self.dispatcher.metrics.events()
    }

    /// Rollouts in memory as lists show them now, without those that were deleted meanwhile.
    pub async fn rows(
        &self,
        entries: Vec<Arc<RolloutEntry>>,
    ) -> Result<Vec<RolloutRow>, EngineError> {
        let listing = Arc::clone(&self.listing);
        let read = move || {
            let rows = entries.iter().filter_map(|entry| listing.row(entry));
            rows.collect()
        };
        Ok(tokio::task::spawn_blocking(read).await?)
    }

    /// What rollouts of other processes come to, from now on.
    pub fn tail(&self) -> IndexTail {
        IndexTail::new(self.store())
    }

    /// Receives each rollout that is deleted from now on.
    pub fn removals(&self) -> broadcast::Receiver<Removal> {
        self.removals.subscribe()
    }

    /// Computes something of the rollouts that match, the newest first, on a thread that may block.
    async fn view<T: Send + 'static>(
        &self,
        owner: &str,
        filter: Filter,
        view: impl FnOnce(Vec<Arc<Summary>>) -> T + Send + 'static,
    ) -> Result<T, EngineError> {
        let known = self.dispatcher.all();
        let listing = Arc::clone(&self.listing);
        let owner = owner.to_owned();
        let viewed = tokio::task::spawn_blocking(move || {
            let visible = listing.visible(&owner, &known)?;
            Ok::<_, StoreError>(view(filter.select(visible)))
        });
        Ok(viewed.await??)
    }
}
