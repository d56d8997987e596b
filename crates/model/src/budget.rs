//! What a rollout may spend on its model. Each call reserves before it is sent and settles when it is answered, so that
//! calls at the same time cannot overshoot together.

use serde::{Deserialize, Serialize};

/// Limits on what one rollout may spend; `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SpendingLimits {
    /// Model calls.
    pub calls: Option<u64>,
    pub prompt_tokens: Option<u64>,
    pub completion_tokens: Option<u64>,
    pub usd: Option<f64>,
}

/// US dollars for a million tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    pub prompt: f64,
    pub completion: f64,
    /// Prompt tokens that were cached; the price of others when it is not given.
    #[serde(default)]
    pub cached: Option<f64>,
    /// Prompt tokens that were put into a cache; the price of others when it is not given.
    #[serde(default)]
    pub cache_write: Option<f64>,
}

/// What was used, or is set aside to be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Spent {
    /// Model calls.
    pub calls: u64,
    /// As the endpoint counted.
    pub prompt_tokens: u64,
    /// Those of the prompt tokens that were cached.
    pub cached_tokens: u64,
    /// Prompt tokens that were put into a cache.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cache_write_tokens: u64,
    /// As the endpoint counted.
    pub completion_tokens: u64,
    /// US dollars; 0 where the price is not known.
    pub usd: f64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The limit that a call would go over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    Calls,
    PromptTokens,
    CompletionTokens,
    Usd,
    /// What the record may take on disk.
    RecordBytes,
}

impl Limit {
    pub fn as_str(self) -> &'static str {
        match self {
            Limit::Calls => "calls",
            Limit::PromptTokens => "prompt_tokens",
            Limit::CompletionTokens => "completion_tokens",
            Limit::Usd => "usd",
            Limit::RecordBytes => "record_bytes",
        }
    }
}

/// What one call has reserved.
#[derive(Debug, PartialEq)]
#[must_use = "a reservation that is not settled stays set aside"]
pub struct Reservation {
    amount: Spent,
}

impl Reservation {
    /// The most completion tokens the call may ask for; `None` when nothing limits them.
    pub fn completion_tokens_max(&self, limits: &SpendingLimits) -> Option<u64> {
        let is_limited = limits.completion_tokens.is_some() || limits.usd.is_some();
        is_limited.then_some(self.amount.completion_tokens)
    }
}

/// What a rollout has spent and reserved, against its limits.
#[derive(Debug, Default)]
pub struct BudgetLedger {
    limits: SpendingLimits,
    price: Option<Price>,
    spent: Spent,
    reserved: Spent,
    stops: u64,
}

impl BudgetLedger {
    pub fn new(limits: SpendingLimits, price: Option<Price>) -> Self {
        BudgetLedger {
            limits,
            price,
            ..BudgetLedger::default()
        }
    }

    pub fn limits(&self) -> &SpendingLimits {
        &self.limits
    }

    pub fn spent(&self) -> Spent {
        self.spent
    }

    /// How many calls were answered by a limit instead of a model.
    pub fn stops(&self) -> u64 {
        self.stops
    }

    /// Reserves what a call may use: an estimate of its prompt, which is not tokenised yet, and the completion it asks
    /// for, cut to what is left.
    pub fn reserve(
        &mut self,
        prompt_guess: u64,
        completion_wanted: u64,
    ) -> Result<Reservation, Limit> {
        let reserved = self.try_reserve(prompt_guess, completion_wanted);
        self.stops += u64::from(reserved.is_err());
        reserved
    }

    fn try_reserve(
        &mut self,
        prompt_guess: u64,
        completion_wanted: u64,
    ) -> Result<Reservation, Limit> {
        let left = |limit: Option<u64>, used: u64| limit.map(|limit| limit.saturating_sub(used));
        let sum = |pick: fn(&Spent) -> u64| pick(&self.spent) + pick(&self.reserved);
        if left(self.limits.calls, sum(|spent| spent.calls)) == Some(0) {
            return Err(Limit::Calls);
        }
        // The estimate may be too high, so only what is certain stops a call: nothing left, or others' reservations.
        if left(self.limits.prompt_tokens, sum(|spent| spent.prompt_tokens)) == Some(0) {
            return Err(Limit::PromptTokens);
        }
        let mut completion = completion_wanted;
        if let Some(left) = left(
            self.limits.completion_tokens,
            sum(|spent| spent.completion_tokens),
        ) {
            if left == 0 {
                return Err(Limit::CompletionTokens);
            }
            completion = completion.min(left);
        }
        if let (Some(limit), Some(price)) = (self.limits.usd, self.price) {
            let prompt = Spent {
                prompt_tokens: prompt_guess,
                ..Spent::default()
            };
            let left = limit - self.spent.usd - self.reserved.usd - cost(price, &prompt);
            let affordable = if price.completion > 0.0 {
                left * 1e6 / price.completion
            } else {
                f64::MAX
            };
            if left <= 0.0 || affordable < 1.0 {
                return Err(Limit::Usd);
            }
            // Far above what any call asks for, a cast saturates.
            completion = completion.min(affordable as u64);
        }
        let mut amount = Spent {
            calls: 1,
            prompt_tokens: prompt_guess,
            completion_tokens: completion,
            ..Spent::default()
        };
        amount.usd = self.price.map_or(0.0, |price| cost(price, &amount));
        add(&mut self.reserved, &amount);
        Ok(Reservation { amount })
    }

    /// Replaces a reservation by what was used; a call that was not answered used nothing.
    pub fn settle(&mut self, reservation: Reservation, used: Option<Spent>) {
        let amount = &reservation.amount;
        self.reserved.calls -= amount.calls;
        self.reserved.prompt_tokens -= amount.prompt_tokens;
        self.reserved.completion_tokens -= amount.completion_tokens;
        // Sums of floats drift; a reservation is never negative.
        self.reserved.usd = (self.reserved.usd - amount.usd).max(0.0);
        if let Some(mut used) = used {
            used.calls = 1;
            used.usd = self.price.map_or(0.0, |price| cost(price, &used));
            add(&mut self.spent, &used);
        }
    }
}

fn add(sum: &mut Spent, more: &Spent) {
    sum.calls += more.calls;
    sum.prompt_tokens += more.prompt_tokens;
    sum.cached_tokens += more.cached_tokens;
    sum.cache_write_tokens += more.cache_write_tokens;
    sum.completion_tokens += more.completion_tokens;
    sum.usd += more.usd;
}

fn cost(price: Price, used: &Spent) -> f64 {
    let fresh = used.prompt_tokens.saturating_sub(used.cached_tokens);
    let fresh = fresh.saturating_sub(used.cache_write_tokens) as f64 * price.prompt;
    let cached = used.cached_tokens as f64 * price.cached.unwrap_or(price.prompt);
    let written = used.cache_write_tokens as f64 * price.cache_write.unwrap_or(price.prompt);
    (fresh + cached + written + used.completion_tokens as f64 * price.completion) / 1e6
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn used(prompt_tokens: u64, completion_tokens: u64) -> Option<Spent> {
        Some(Spent {
            prompt_tokens,
            completion_tokens,
            ..Spent::default()
        })
    }

    #[test]
    fn calls_at_once_cannot_overshoot_together() {
        let limits = SpendingLimits {
            calls: Some(2),
            ..SpendingLimits::default()
        };
        let mut budget = BudgetLedger::new(limits, None);
        let first = budget.reserve(10, 10).unwrap();
        let second = budget.reserve(10, 10).unwrap();
        assert_eq!(budget.reserve(10, 10), Err(Limit::Calls));
        budget.settle(first, None);
        let third = budget.reserve(10, 10).unwrap();
        budget.settle(second, used(1, 1));
        budget.settle(third, used(1, 1));
        assert_eq!(budget.reserve(10, 10), Err(Limit::Calls));
        assert_eq!((budget.spent().calls, budget.stops()), (2, 2));
    }

    #[test]
    fn completions_are_cut_to_what_is_left() {
        let limits = SpendingLimits {
            completion_tokens: Some(100),
            ..SpendingLimits::default()
        };
        let mut budget = BudgetLedger::new(limits, None);
        let first = budget.reserve(5, 70).unwrap();
        let second = budget.reserve(5, 70).unwrap();
        assert_eq!(second.completion_tokens_max(&limits), Some(30));
        assert_eq!(budget.reserve(5, 70), Err(Limit::CompletionTokens));
        budget.settle(first, used(5, 20));
        budget.settle(second, used(5, 30));
        assert_eq!(
            budget
                .reserve(5, 70)
                .unwrap()
                .completion_tokens_max(&limits),
            Some(50)
        );
    }

    #[test]
    fn dollars_count_prompt_and_completion() {
        let limits = SpendingLimits {
            usd: Some(0.01),
            ..SpendingLimits::default()
        };
        let price = Price {
            prompt: 1.0,
            completion: 10.0,
            cached: Some(0.5),
            cache_write: None,
        };
        let mut budget = BudgetLedger::new(limits, Some(price));
        let call = budget.reserve(1000, 8000).unwrap();
        assert_eq!(call.completion_tokens_max(&limits), Some(900));
        budget.settle(call, used(1000, 900));
        assert!((budget.spent().usd - 0.01).abs() < 1e-9);
        assert_eq!(budget.reserve(1, 1), Err(Limit::Usd));
    }

    #[test]
    fn tokens_into_and_out_of_a_cache_have_their_own_price() {
        let price = Price {
            prompt: 4.0,
            completion: 10.0,
            cached: Some(1.0),
            cache_write: Some(5.0),
        };
        let used = Spent {
            prompt_tokens: 600,
            cached_tokens: 300,
            cache_write_tokens: 200,
            completion_tokens: 10,
            ..Spent::default()
        };
        let expect = 100.0 * 4.0 + 300.0 * 1.0 + 200.0 * 5.0 + 10.0 * 10.0;
        assert!((cost(price, &used) * 1e6 - expect).abs() < 1e-6);
    }

    proptest! {
        #[test]
        fn what_is_spent_never_passes_the_limit(calls in prop::collection::vec((1_u64..50, any::<bool>()), 0..40)) {
            let limits = SpendingLimits { calls: Some(20), completion_tokens: Some(300), ..SpendingLimits::default() };
            let mut budget = BudgetLedger::new(limits, None);
            let mut open = Vec::new();
            for (wanted, is_settled) in calls {
                if let Ok(call) = budget.reserve(1, wanted) {
                    open.push(call);
                }
                if is_settled && let Some(call) = open.pop() {
                    let most = call.completion_tokens_max(&limits).unwrap();
                    budget.settle(call, used(1, most));
                }
            }
            for call in open {
                let most = call.completion_tokens_max(&limits).unwrap();
                budget.settle(call, used(1, most));
            }
            prop_assert!(budget.spent().completion_tokens <= 300 && budget.spent().calls <= 20);
        }
    }
}
