//! Lists of rollouts with filters and pages, how many there are of what, figures over them, and the list of tasks.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use rollcage_engine::{EndedFilter, Filter, Order, Place, SortKey, Window};
use rollcage_model::browse::figures::{Dimension, FiguresPage};
use rollcage_model::browse::rollout::{Facets, RolloutPage};

use super::error::ApiError;
use super::parameters::{Parameters, RawQuery};
use super::{BackendState, OwnerName};
use crate::server::rollouts::catalogue::{self, TaskList};

pub(super) const LIMIT: usize = 50;
pub(super) const LIMIT_MAX: usize = 500;

pub(super) async fn list(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    query: RawQuery,
) -> Result<Json<RolloutPage>, ApiError> {
    let mut wanted = Parameters::read(query)?;
    let filter = filter(&mut wanted)?;
    let window = window(&mut wanted)?;
    wanted.finish()?;
    Ok(Json(backend.engine.list(&owner, filter, window).await?))
}

pub(super) async fn facets(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    query: RawQuery,
) -> Result<Json<Facets>, ApiError> {
    let mut wanted = Parameters::read(query)?;
    let filter = filter(&mut wanted)?;
    wanted.finish()?;
    Ok(Json(backend.engine.facets(&owner, filter).await?))
}

pub(super) async fn figures(
    State(backend): BackendState,
    OwnerName(owner): OwnerName,
    query: RawQuery,
) -> Result<Json<FiguresPage>, ApiError> {
    let mut wanted = Parameters::read(query)?;
    let filter = filter(&mut wanted)?;
    let by = wanted.take_as("by", dimensions_of)?;
    let start = wanted.take_number("start", 0..=usize::MAX)?;
    let limit = wanted.take_number("limit", 1..=LIMIT_MAX)?;
    wanted.finish()?;
    let (by, start) = (by.unwrap_or_default(), start.unwrap_or(0));
    let limit = limit.unwrap_or(LIMIT);
    let figures = backend.engine.figures(&owner, filter, by, start, limit);
    Ok(Json(figures.await?))
}

/// The conditions that all of these take.
fn filter(wanted: &mut Parameters) -> Result<Filter, ApiError> {
    let labels = wanted.take_all("label").into_iter();
    let labels = labels.map(|label| match label.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err(ApiError::bad("`label` must be NAME=VALUE")),
    });
    Ok(Filter {
        task: wanted.take("task")?,
        agent: wanted.take("agent")?,
        model: wanted.take("model")?,
        group: wanted.take("group")?,
        status: wanted.take_as("status", |text| {
            named(text, "`status` must be `queued`, `running` or `ended`")
        })?,
        verdict: wanted.take_as("verdict", |text| {
            named(
                text,
                "`verdict` must be `pass`, `partial`, `fail`, `invalid` or `open`",
            )
        })?,
        ended: wanted.take_as("ended", ended_of)?,
        labels: labels.collect::<Result<_, _>>()?,
        text: wanted.take("q")?.filter(|text| !text.is_empty()),
        since: wanted.take_as("since", |text| time_of(text, "since"))?,
        until: wanted.take_as("until", |text| time_of(text, "until"))?,
    })
}

/// Which page, and in which order.
fn window(wanted: &mut Parameters) -> Result<Window, ApiError> {
    let sort = wanted.take_as("sort", sort_of)?;
    let order = wanted.take_as("order", order_of)?;
    let cursor = wanted.take_as("cursor", |text| {
        let bad = "`cursor` must be the `next_cursor` of an earlier page";
        text.parse().map_err(|_| ApiError::bad(bad))
    })?;
    let offset = wanted.take_number("offset", 0..=usize::MAX)?;
    let limit = wanted.take_number("limit", 1..=LIMIT_MAX)?;
    // What is given as it would be without it changes nothing: generated clients may send every default.
    let sort = match (sort, order) {
        (None | Some(SortKey::StartedAt), None | Some(Order::Descending)) => None,
        (key, order) => Some((
            key.unwrap_or(SortKey::StartedAt),
            order.unwrap_or(Order::Descending),
        )),
    };
    let place = match (cursor, offset) {
        (Some(_), Some(_)) => Err(ApiError::bad("give `cursor` or `offset`, not both")),
        (Some(_), None) if sort.is_some() => Err(ApiError::bad(
            "`cursor` goes with lists by age, the newest first: give `offset` beside another `sort` or `order`",
        )),
        (Some(id), None) => Ok(Place::After(id)),
        (None, Some(offset)) => Ok(Place::Offset(offset)),
        (None, None) => Ok(Place::Start),
    };
    Ok(Window {
        sort,
        place: place?,
        limit: limit.unwrap_or(LIMIT),
    })
}

/// A value by its name in JSON.
fn named<T: DeserializeOwned>(text: &str, bad: &str) -> Result<T, ApiError> {
    let parsed = serde_json::from_value(Value::String(text.to_owned()));
    parsed.map_err(|_| ApiError::bad(bad))
}

fn ended_of(text: &str) -> Result<EndedFilter, ApiError> {
    if text == "running" {
        return Ok(EndedFilter::Not);
    }
    let bad = "`ended` must be `running` or a way to end, such as `completed` or `timed_out`";
    named(text, bad).map(EndedFilter::As)
}

fn sort_of(text: &str) -> Result<SortKey, ApiError> {
    let found = SortKey::ALL.into_iter().find(|key| key.as_str() == text);
    found.ok_or_else(|| {
        let names = SortKey::ALL.map(SortKey::as_str).join(", ");
        ApiError::bad(format!("`sort` must be one of {names}"))
    })
}

fn order_of(text: &str) -> Result<Order, ApiError> {
    match text {
        "asc" => Ok(Order::Ascending),
        "desc" => Ok(Order::Descending),
        _ => Err(ApiError::bad("`order` must be `asc` or `desc`")),
    }
}

/// Names with commas between them.
fn dimensions_of(text: &str) -> Result<Vec<Dimension>, ApiError> {
    let names = text.split(',').filter(|name| !name.is_empty());
    let bad = "`by` must be some of `task`, `agent`, `model` and `group`, with commas between them";
    let mut dimensions = names
        .map(|name| named(name, bad))
        .collect::<Result<Vec<_>, _>>()?;
    dimensions.sort_unstable();
    dimensions.dedup();
    Ok(dimensions)
}

/// Unix seconds, or a time such as 2026-05-01T12:00:00Z.
fn time_of(text: &str, name: &str) -> Result<f64, ApiError> {
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
    let time = || {
        let time = text.parse::<jiff::Timestamp>().ok()?;
        Some(time.as_millisecond() as f64 / 1000.0)
    };
    number.or_else(time).ok_or_else(|| {
        let text = format!("`{name}` must be Unix seconds or a time such as 2026-05-01T12:00:00Z");
        ApiError::bad(text)
    })
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TasksQuery {
    split: Option<String>,
    start: Option<usize>,
    stop: Option<usize>,
}

pub(super) async fn tasks(
    State(backend): BackendState,
    wanted: Result<Query<TasksQuery>, QueryRejection>,
) -> Result<Json<TaskList>, ApiError> {
    let Query(wanted) = wanted.map_err(|rejection| ApiError::bad(rejection.body_text()))?;
    let tasks = &backend.context.tasks;
    let start = wanted.start.unwrap_or(0);
    Ok(Json(catalogue::tasks(
        tasks,
        wanted.split.as_deref(),
        start,
        wanted.stop,
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(pairs: &[(&str, &str)]) -> Parameters {
        let pairs = pairs.iter();
        let pairs = pairs.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Parameters::read(Ok(Query(pairs.collect()))).unwrap()
    }

    #[test]
    fn times_are_numbers_or_written_out() {
        let since_of = |text| time_of(text, "since");
        assert_eq!(since_of("1.5").unwrap(), 1.5);
        assert_eq!(since_of("1970-01-01T00:01:00Z").unwrap(), 60.0);
        assert!(since_of("yesterday").is_err() && since_of("nan").is_err());
    }

    #[test]
    fn ends_are_those_of_results() {
        assert_eq!(ended_of("running").unwrap(), EndedFilter::Not);
        let late = EndedFilter::As(rollcage_model::ending::Ended::TimedOut);
        assert_eq!(ended_of("timed_out").unwrap(), late);
        assert!(ended_of("good").is_err());
    }

    #[test]
    fn labels_may_be_several_and_other_filters_not() {
        let mut wanted = parameters(&[("label", "a=1"), ("label", "b=x=y"), ("q", "")]);
        let read = filter(&mut wanted).unwrap();
        wanted.finish().unwrap();
        let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(read.labels, [label("a", "1"), label("b", "x=y")]);
        assert_eq!(read.text, None);
        assert!(filter(&mut parameters(&[("task", "a"), ("task", "b")])).is_err());
        assert!(filter(&mut parameters(&[("label", "a")])).is_err());
    }

    #[test]
    fn a_page_is_found_by_cursor_or_by_offset() {
        let read = |pairs: &[_]| window(&mut parameters(pairs));
        let id = "01a1def5-4761-728b-8052-f97b33bee3e5";
        let first = read(&[("cursor", id)]).unwrap();
        assert_eq!(first.place, Place::After(id.parse().unwrap()));
        assert_eq!((first.sort, first.limit), (None, LIMIT));
        let sorted = read(&[("sort", "cost"), ("offset", "20"), ("limit", "10")]).unwrap();
        assert_eq!(sorted.place, Place::Offset(20));
        assert_eq!(sorted.sort, Some((SortKey::Cost, Order::Descending)));
        let oldest = read(&[("order", "asc")]).unwrap();
        assert_eq!(oldest.sort, Some((SortKey::StartedAt, Order::Ascending)));
        for default in [
            &[("sort", "started_at"), ("cursor", id)][..],
            &[("order", "desc"), ("cursor", id)],
            &[("sort", "started_at"), ("order", "desc"), ("cursor", id)],
        ] {
            assert_eq!(read(default).unwrap(), first, "{default:?}");
        }
        assert!(read(&[("cursor", id), ("order", "asc")]).is_err());
        assert!(read(&[("cursor", id), ("offset", "1")]).is_err());
        assert!(read(&[("cursor", id), ("sort", "cost")]).is_err());
        assert!(read(&[("limit", "501")]).is_err() && read(&[("limit", "0")]).is_err());
    }
}
