//! Any file can be read as a record: interpreted and exported without a panic, and every trace obeys its rules.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rollcage_model::exchange;
use rollcage_model::export::{Format, Meta, Options, write};
use rollcage_model::trace::interpret;

fuzz_target!(|bytes: &[u8]| {
    let (exchanges, _) = exchange::read(bytes);
    let seen = interpret(&exchanges);
    if let Some(trace) = &seen.training_trace {
        trace.check().expect("a trace obeys the rules");
    }
    for format in Format::ALL {
        // Not every rollout has every format; what is refused is refused in words.
        let _ = write(
            *format,
            &seen,
            &Meta::default(),
            Options::default(),
            &mut Vec::new(),
        );
    }
});
