//! Lists, counts and figures, over records that were written as another process would.

use rollcage_engine::result::begin_abandoned;
use rollcage_engine::store::{StartInfo, Store};
use rollcage_model::ending::Ended;
use rollcage_model::id::RolloutId;
use rollcage_model::record::RolloutResult;
use rollcage_model::task::Task;

use super::*;

impl Client {
    /// Writes the record of an ended rollout of this client.
    pub(super) fn commit(&self, change: impl FnOnce(&mut RolloutResult)) -> RolloutId {
        let store = Store::open(self.backend.engine.store().root()).unwrap();
        let id = RolloutId::generate();
        let begun = store.begin(
            id,
            &Task::default(),
            &StartInfo::default(),
            Some(&self.owner),
        );
        let mut result = RolloutResult {
            ended: Ended::Completed,
            started_at: id.unix_seconds(),
            ..begin_abandoned(id, Task::default())
        };
        change(&mut result);
        begun.unwrap().commit(&result).unwrap();
        id
    }

    /// The ids of a list.
    async fn ids(&self, query: &str) -> Vec<String> {
        let answer = self.get(&format!("/v1/rollouts?{query}")).await;
        assert_eq!(answer.status, StatusCode::OK, "{query}: {:?}", answer.body);
        let page = answer.json();
        let rows = page["rollouts"].as_array().unwrap();
        let id = |row: &Value| row["rollout_id"].as_str().unwrap().to_owned();
        rows.iter().map(id).collect()
    }
}

/// Four rollouts of two tasks; the ids with the oldest first.
fn four(client: &Client) -> Vec<String> {
    let rewards = [Some(1.0), Some(0.0), Some(0.5), None];
    rewards
        .into_iter()
        .enumerate()
        .map(|(number, reward)| {
            let id = client.commit(|result| {
                result.task_id = ["parse", "sort"][number % 2].to_owned();
                result.agent.name = "opencode".to_owned();
                result.endpoint.model = "tiny".to_owned();
                result.group = format!("g{}", number / 2);
                result.labels = [("step".to_owned(), number.to_string())].into();
                result.reward = reward;
                result.reward_valid = reward.is_some();
                result.usage.completion_tokens = 10 * number as u64;
                result.budget.spent.usd = 0.25;
                result.error = reward.is_none().then(|| "The endpoint is gone".to_owned());
            });
            id.to_string()
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn rollouts_are_listed_by_what_they_are() {
    let client = Client::new().await;
    let ids = four(&client);
    let pick = |places: &[usize]| -> Vec<String> {
        places.iter().map(|place| ids[*place].clone()).collect()
    };
    for (query, places) in [
        ("", &[3, 2, 1, 0][..]),
        ("task=parse", &[2, 0]),
        ("group=g1", &[3, 2]),
        ("verdict=pass", &[0]),
        ("verdict=invalid", &[3]),
        ("status=ended&ended=completed&agent=opencode", &[3, 2, 1, 0]),
        ("status=running", &[]),
        ("label=step=2", &[2]),
        ("label=step=2&label=step=1", &[]),
        ("q=ENDPOINT", &[3]),
        ("sort=reward", &[0, 2, 1, 3]),
        ("sort=tokens&order=asc&offset=1&limit=2", &[1, 2]),
        ("until=1", &[]),
        ("since=1&limit=1", &[3]),
    ] {
        assert_eq!(client.ids(query).await, pick(places), "{query}");
    }
    let page = client.get("/v1/rollouts?limit=2").await.json();
    assert_eq!(
        (&page["total"], &page["next_cursor"]),
        (&json!(4), &json!(ids[2]))
    );
    let defaults = "limit=2&sort=started_at&order=desc";
    let spelt_out = client.get(&format!("/v1/rollouts?{defaults}")).await;
    assert_eq!(spelt_out.json(), page);
    for query in ["limit=2", defaults] {
        let rest = client.ids(&format!("{query}&cursor={}", ids[2])).await;
        assert_eq!(rest, pick(&[1, 0]), "{query}");
    }
    let row = &page["rollouts"][0];
    assert_eq!(
        (
            &row["status"],
            &row["ended"],
            &row["verdict"],
            &row["cost_usd"]
        ),
        (
            &json!("ended"),
            &json!("completed"),
            &json!("invalid"),
            &json!(0.25)
        )
    );
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rollouts_are_counted_and_compared() {
    let client = Client::new().await;
    four(&client);
    let counted = client.get("/v1/rollouts/facets?model=tiny").await.json();
    assert_eq!(
        (&counted["total"], &counted["verdict"]),
        (
            &json!(4),
            &json!({"pass": 1, "fail": 1, "partial": 1, "invalid": 1})
        )
    );
    let groups = json!([{"value": "g1", "count": 2}, {"value": "g0", "count": 2}]);
    assert_eq!(counted["groups"], groups);
    let figures = client.get("/v1/figures?by=task&limit=1").await.json();
    assert_eq!(figures["total"], json!(2));
    let newest = &figures["groups"][0];
    assert_eq!(
        (&newest["key"], &newest["rollouts"], &newest["valid"]),
        (&json!({"task": "sort"}), &json!(2), &json!(1))
    );
    let all = &figures["all"];
    assert_eq!(
        (&all["passed"], &all["mean_reward"], &all["cost_usd"]),
        (&json!(1), &json!(0.5), &json!(1.0))
    );
    // `parse` passed once in two tries, `sort` never in one.
    assert_eq!(
        all["pass_at_k"],
        json!([{"k": 1, "value": 0.25, "tasks": 2}, {"k": 2, "value": 1.0, "tasks": 1}])
    );
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_whose_result_is_damaged_says_so_and_can_be_deleted() {
    let client = Client::new().await;
    let id = client.commit(|_| ());
    let record = client.backend.engine.store().directory(id);
    for file in ["summary.json", "result.json"] {
        std::fs::write(record.join(file), "{").unwrap();
    }
    let path = format!("/v1/rollouts/{id}");
    for part in ["", "/turns", "/transcript", "/messages", "/trace", "/files"] {
        let answer = client.get(&format!("{path}{part}")).await;
        answer.check_error(409, "unreadable");
    }
    let cancelled = client.ask(Method::POST, &format!("{path}/cancel")).await;
    assert_eq!(cancelled.json()["cancelled"], json!(false));
    let deleted = client.ask(Method::DELETE, &path).await;
    assert_eq!(deleted.status, StatusCode::NO_CONTENT);
    client.get(&path).await.check_error(404, "not_found");
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_calls_than_are_shown_are_refused_with_a_reason() {
    let client = Client::new().await;
    let id = client.commit(|_| ());
    let exchanges = client.backend.engine.store().exchanges(id);
    // A hole of that length, which nothing reads.
    let exchanges = std::fs::File::create(exchanges).unwrap();
    exchanges.set_len((512 << 20) + 1).unwrap();
    for part in ["turns", "figures", "messages"] {
        let answer = client.get(&format!("/v1/rollouts/{id}/{part}")).await;
        answer.check_error(422, "too_large");
    }
    let deleted = client
        .ask(Method::DELETE, &format!("/v1/rollouts/{id}"))
        .await;
    assert_eq!(deleted.status, StatusCode::NO_CONTENT);
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_question_is_told_apart_from_an_empty_answer() {
    let client = Client::new().await;
    for path in [
        "rollouts?limit=0",
        "rollouts?limit=501",
        "rollouts?ended=good",
        "rollouts?since=x",
        "rollouts?cursor=x",
        "rollouts?nope=1",
        "rollouts?status=over",
        "rollouts?verdict=good",
        "rollouts?label=step",
        "rollouts?sort=colour",
        "rollouts?order=up",
        "rollouts?offset=-1",
        "rollouts?task=a&task=b",
        "rollouts/facets?limit=1",
        "figures?by=colour",
        "figures?cursor=x",
        "events?watch=x",
        "events?nope=1",
    ] {
        let answer = client.get(&format!("/v1/{path}")).await;
        answer.check_error(400, "invalid_argument");
    }
    client.close().await;
}
