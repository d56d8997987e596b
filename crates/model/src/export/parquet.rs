//! A table with a row for each of the agent's exact turns, of as many rollouts as are pushed.
//!
//! Names, order and types of the columns are a contract: new ones go to the end.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::Arc;

use ::parquet::basic::{Compression, ZstdLevel};
use ::parquet::data_type::BoolType;
use ::parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int32Type, Int64Type};
use ::parquet::errors::Result;
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use ::parquet::schema::parser::parse_message_type;

use super::{ExportError, Meta, check_trainable, codes};
use crate::finding::Code;
use crate::trace::{Interpretation, TrainingTurn};

const SCHEMA: &str = "
message turns {
  required binary rollout_id (STRING);
  required binary task_id (STRING);
  required binary agent (STRING);
  required binary agent_version (STRING);
  required binary model (STRING);
  required binary node_id (STRING);
  required binary root_id (STRING);
  required int64 turn;
  required int64 row;
  optional double reward;
  required boolean reward_valid;
  optional binary ended (STRING);
  optional binary finish_reason (STRING);
  required double started_at;
  required group prompt_token_ids (LIST) { repeated group list { required int32 element (INTEGER(32, false)); } }
  required group completion_token_ids (LIST) { repeated group list { required int32 element (INTEGER(32, false)); } }
  required group logprobs (LIST) { repeated group list { required double element; } }
  required group loss_mask (LIST) { repeated group list { required int32 element (INTEGER(8, false)); } }
  required binary messages (JSON);
  required binary tools (JSON);
  required binary response (JSON);
  required binary group (STRING);
  required group finding_codes (LIST) { repeated group list { required binary element (STRING); } }
}";

/// Ids that are held until they are written as one group of rows.
const GROUP_IDS_MAX: usize = 4 << 20;

/// A table being written. Without [`Table::close`] the file cannot be read.
pub struct Table<W: Write + Send> {
    writer: SerializedFileWriter<W>,
    rows: Vec<Row>,
    n_ids: usize,
    n_rows: usize,
}

struct Row {
    turn: TrainingTurn,
    root_id: String,
    index: i64,
    number: i64,
    model: String,
    finish_reason: Option<String>,
    rollout: Arc<Meta>,
    finding_codes: Arc<BTreeSet<Code>>,
}

impl<W: Write + Send> Table<W> {
    pub fn new(out: W) -> std::result::Result<Self, ExportError> {
        let schema = Arc::new(parse_message_type(SCHEMA)?);
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .build();
        Ok(Table {
            writer: SerializedFileWriter::new(out, schema, Arc::new(properties))?,
            rows: Vec::new(),
            n_ids: 0,
            n_rows: 0,
        })
    }

    /// Adds the rows of a rollout; one of type `Eval` is refused and leaves the table as it is.
    pub fn push(
        &mut self,
        seen: &Interpretation,
        meta: &Meta,
    ) -> std::result::Result<(), ExportError> {
        check_trainable(seen, meta)?;
        let rollout = Arc::new(meta.clone());
        let finding_codes = Arc::new(codes(&seen.findings));
        for turn in seen.training_turns() {
            let index = turn
                .metadata
                .get("index")
                .and_then(serde_json::Value::as_u64);
            let index = index
                .and_then(|index| usize::try_from(index).ok())
                .unwrap_or_default();
            let node = seen.graph.node_of(index);
            let text = |value: Option<&str>| value.unwrap_or_default().to_owned();
            self.n_ids += turn.loss_mask.len();
            self.rows.push(Row {
                root_id: text(node.map(|node| seen.graph.nodes[node.root].id.as_str())),
                index: i64::try_from(index).unwrap_or(i64::MAX),
                number: i64::try_from(self.n_rows).unwrap_or(i64::MAX),
                model: seen.turns[index]
                    .model
                    .clone()
                    .unwrap_or_else(|| meta.model.clone()),
                finish_reason: seen.turns[index].finish_reason.clone(),
                rollout: rollout.clone(),
                finding_codes: finding_codes.clone(),
                turn,
            });
            self.n_rows += 1;
            if self.n_ids >= GROUP_IDS_MAX {
                self.flush()?;
            }
        }
        Ok(())
    }

    pub fn close(mut self) -> std::result::Result<(), ExportError> {
        self.flush()?;
        self.writer.close()?;
        Ok(())
    }

    /// The columns in the order of the schema.
    fn flush(&mut self) -> Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let rows = std::mem::take(&mut self.rows);
        self.n_ids = 0;
        let mut columns = Columns {
            group: self.writer.next_row_group()?,
            rows: &rows,
        };
        columns.texts(|row| row.rollout.rollout_id.clone())?;
        columns.texts(|row| row.rollout.task_id.clone())?;
        columns.texts(|row| row.rollout.agent.name.clone())?;
        columns.texts(|row| row.rollout.agent.version.clone())?;
        columns.texts(|row| row.model.clone())?;
        columns.texts(|row| row.turn.node_id.clone())?;
        columns.texts(|row| row.root_id.clone())?;
        columns.values::<Int64Type>(|row| row.index)?;
        columns.values::<Int64Type>(|row| row.number)?;
        columns.options::<DoubleType>(|row| row.rollout.reward)?;
        columns.values::<BoolType>(|row| row.rollout.reward_valid)?;
        columns
            .options::<ByteArrayType>(|row| row.rollout.ended.map(|ended| ended.as_str().into()))?;
        columns
            .options::<ByteArrayType>(|row| row.finish_reason.as_deref().map(ByteArray::from))?;
        columns.values::<DoubleType>(|row| row.rollout.started_at)?;
        columns.lists::<Int32Type>(|row| unsigned(&row.turn.prompt_token_ids))?;
        columns.lists::<Int32Type>(|row| unsigned(&row.turn.completion_token_ids))?;
        columns.lists::<DoubleType>(|row| row.turn.per_token_logps.clone())?;
        columns.lists::<Int32Type>(|row| {
            row.turn
                .loss_mask
                .iter()
                .map(|mask| i32::from(*mask))
                .collect()
        })?;
        columns.texts(|row| json(row.turn.request.get("messages")))?;
        columns.texts(|row| json(row.turn.request.get("tools")))?;
        columns.texts(|row| {
            json(
                row.turn
                    .response
                    .get("choices")
                    .and_then(|choices| choices.pointer("/0/message")),
            )
        })?;
        columns.texts(|row| row.rollout.group.clone())?;
        columns.lists::<ByteArrayType>(|row| {
            let codes = row.finding_codes.iter();
            codes
                .map(|code| code.to_string().into_bytes().into())
                .collect()
        })?;
        columns.group.close()?;
        Ok(())
    }
}

fn json(value: Option<&serde_json::Value>) -> String {
    value.map_or_else(|| "null".to_owned(), ToString::to_string)
}

/// Parquet has its unsigned numbers as the same bits of signed ones.
fn unsigned(ids: &[u32]) -> Vec<i32> {
    ids.iter().map(|id| id.cast_signed()).collect()
}

struct Columns<'a, W: Write + Send> {
    group: SerializedRowGroupWriter<'a, W>,
    rows: &'a [Row],
}

impl<W: Write + Send> Columns<'_, W> {
    fn write<T: DataType>(
        &mut self,
        values: &[T::T],
        definitions: Option<&[i16]>,
        repetitions: Option<&[i16]>,
    ) -> Result<()> {
        let Some(mut column) = self.group.next_column()? else {
            return Ok(());
        };
        column
            .typed::<T>()
            .write_batch(values, definitions, repetitions)?;
        column.close()
    }

    fn values<T: DataType>(&mut self, value: impl Fn(&Row) -> T::T) -> Result<()> {
        let values: Vec<T::T> = self.rows.iter().map(value).collect();
        self.write::<T>(&values, None, None)
    }

    fn texts(&mut self, text: impl Fn(&Row) -> String) -> Result<()> {
        self.values::<ByteArrayType>(|row| ByteArray::from(text(row).into_bytes()))
    }

    fn options<T: DataType>(&mut self, value: impl Fn(&Row) -> Option<T::T>) -> Result<()> {
        let values: Vec<Option<T::T>> = self.rows.iter().map(value).collect();
        let definitions: Vec<i16> = values
            .iter()
            .map(|value| i16::from(value.is_some()))
            .collect();
        let values: Vec<T::T> = values.into_iter().flatten().collect();
        self.write::<T>(&values, Some(&definitions), None)
    }

    fn lists<T: DataType>(&mut self, list: impl Fn(&Row) -> Vec<T::T>) -> Result<()> {
        let (mut values, mut definitions, mut repetitions) = (Vec::new(), Vec::new(), Vec::new());
        for row in self.rows {
            let list = list(row);
            // An empty list is one level that says there is nothing in it.
            definitions.extend(std::iter::repeat_n(
                i16::from(!list.is_empty()),
                list.len().max(1),
            ));
            repetitions.push(0);
            repetitions.extend(std::iter::repeat_n(1, list.len().saturating_sub(1)));
            values.extend(list);
        }
        self.write::<T>(&values, Some(&definitions), Some(&repetitions))
    }
}
