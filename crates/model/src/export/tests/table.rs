//! Rollouts as tables.

use super::*;

#[test]
fn a_table_has_a_row_for_each_exact_turn_of_the_agent() {
    use ::parquet::file::reader::{FileReader, SerializedFileReader};

    let exchanges: Vec<Exchange> = (1..)
        .zip(&usual())
        .map(|(number, call)| exchange(number, call, |_, _| {}))
        .collect();
    let seen = trace::read(exchanges);
    let path = std::env::temp_dir().join(format!("rollcage-{}.parquet", std::process::id()));
    let mut table = parquet::Table::new(std::fs::File::create(&path).unwrap()).unwrap();
    for rollout_id in ["a", "b"] {
        let meta = Meta {
            rollout_id: rollout_id.to_owned(),
            ..Meta::default()
        };
        table.push(&seen, &meta).unwrap();
    }
    table.close().unwrap();
    let reader = SerializedFileReader::new(std::fs::File::open(&path).unwrap()).unwrap();
    std::fs::remove_file(&path).unwrap();
    let rows = reader.get_row_iter(None).unwrap();
    let rows: Vec<String> = rows.map(|row| row.unwrap().to_string()).collect();
    assert_eq!(rows.len(), 4);
    assert!(rows[3].contains("rollout_id: \"b\""), "{}", rows[3]);
    assert!(
        rows[3].contains("prompt_token_ids: [1, 2, 3, 4]"),
        "{}",
        rows[3]
    );
    assert!(
        rows[3].contains("loss_mask: [0, 0, 0, 0, 1, 1]"),
        "{}",
        rows[3]
    );
}

#[test]
fn a_table_holds_the_training_trace_of_each_rollout() {
    use ::parquet::file::reader::{FileReader, SerializedFileReader};

    let exchanges: Vec<Exchange> = (1..)
        .zip(&usual())
        .map(|(number, call)| exchange(number, call, |_, _| {}))
        .collect();
    let seen = trace::interpret(&exchanges);
    let mut out = Vec::new();
    let mut table = parquet::Table::new(&mut out).unwrap();
    for id in ["first", "second"] {
        let meta = Meta {
            rollout_id: id.to_owned(),
            reward: Some(0.5),
            ..Meta::default()
        };
        table.push(&seen, &meta).unwrap();
    }
    let nothing = trace::interpret(&[]);
    assert!(table.push(&nothing, &Meta::default()).is_err());
    table.close().unwrap();

    let reader = SerializedFileReader::new(bytes::Bytes::from(out)).unwrap();
    let rows: Vec<Value> = reader
        .get_row_iter(None)
        .unwrap()
        .map(|row| row.unwrap().to_json_value())
        .collect();
    let turns = seen.training_trace.unwrap().turns;
    assert_eq!(rows.len(), 2 * turns.len());
    for (number, (row, turn)) in rows.iter().zip(turns.iter().chain(&turns)).enumerate() {
        let id = ["first", "second"][number / turns.len()];
        assert_eq!(
            (&row["rollout_id"], &row["reward"]),
            (&json!(id), &json!(0.5))
        );
        assert_eq!(row["node_id"], json!(turn.node_id));
        assert_eq!(row["prompt_token_ids"], json!(turn.prompt_token_ids));
        assert_eq!(
            row["completion_token_ids"],
            json!(turn.completion_token_ids)
        );
        assert_eq!(row["logprobs"], json!(turn.per_token_logps));
        assert_eq!(row["loss_mask"], json!(turn.loss_mask));
        let codes = codes(&seen.findings);
        assert!(!codes.is_empty());
        assert_eq!(row["finding_codes"], json!(codes));
    }
}
