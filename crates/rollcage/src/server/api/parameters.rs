//! The parameters of a query, taken one by one, so that routes can share some of them. An unknown one is refused: a
//! filter with a typing error must not answer with everything.

use axum::extract::Query;
use axum::extract::rejection::QueryRejection;

use super::error::ApiError;

/// What is left of a query.
#[derive(Debug)]
pub(super) struct Parameters(Vec<(String, String)>);

/// How a handler receives them.
pub(super) type RawQuery = Result<Query<Vec<(String, String)>>, QueryRejection>;

impl Parameters {
    pub(super) fn read(query: RawQuery) -> Result<Self, ApiError> {
        let Query(pairs) = query.map_err(|rejection| ApiError::bad(rejection.body_text()))?;
        Ok(Parameters(pairs))
    }

    /// The value of a parameter that is given at most once.
    pub(super) fn take(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        let mut values = self.take_all(name);
        if values.len() > 1 {
            return Err(ApiError::bad(format!("`{name}` is given twice")));
        }
        Ok(values.pop())
    }

    /// A parameter that some text has to be made something of.
    pub(super) fn take_as<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(&str) -> Result<T, ApiError>,
    ) -> Result<Option<T>, ApiError> {
        self.take(name)?.as_deref().map(read).transpose()
    }

    /// A whole number within bounds.
    pub(super) fn take_number(
        &mut self,
        name: &str,
        bounds: std::ops::RangeInclusive<usize>,
    ) -> Result<Option<usize>, ApiError> {
        self.take_as(name, |text| {
            let number = text.parse().ok().filter(|number| bounds.contains(number));
            number.ok_or_else(|| {
                let (least, most) = (bounds.start(), bounds.end());
                ApiError::bad(match *most {
                    usize::MAX => format!("`{name}` must be a number, {least} or more"),
                    most => format!("`{name}` must be between {least} and {most}"),
                })
            })
        })
    }

    pub(super) fn take_all(&mut self, name: &str) -> Vec<String> {
        let is_it = |(given, _): &mut (String, String)| given == name;
        let taken = self.0.extract_if(.., is_it);
        taken.map(|(_, value)| value).collect()
    }

    /// Refuses what nobody took.
    pub(super) fn finish(self) -> Result<(), ApiError> {
        match self.0.first() {
            Some((name, _)) => Err(ApiError::bad(format!(
                "there is no parameter `{name}` here"
            ))),
            None => Ok(()),
        }
    }
}
