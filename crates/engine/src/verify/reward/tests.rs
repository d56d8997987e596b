use super::*;

const PATH: &str = "/home/user/logs/verifier/reward.txt";

fn asks(task: &str, commands: &[&str]) -> Vec<bool> {
    let task = Task::from_toml(&format!("instruction = 'go'\n{task}")).unwrap();
    asking(&task, &BTreeMap::new(), commands)
}

#[test]
fn only_commands_that_are_meant_to_write_the_file_are_asked() {
    let write = format!("echo 1 > {PATH}");
    // Nobody names it.
    assert_eq!(asks("", &["pytest", "true"]), [false, false]);
    // One command does.
    assert_eq!(asks("", &["pytest", &write]), [false, true]);
    // A file does, which one command runs.
    let script = "files = {'/home/user/tests/grade.py' = 'open(\"reward.txt\")'}";
    let run = "python3 ~/tests/grade.py";
    assert_eq!(asks(script, &[run, "pytest"]), [true, false]);
    // A file does, and it does not show who runs it.
    assert_eq!(asks(script, &["make", "pytest"]), [true, true]);
    // The author says so.
    assert_eq!(asks("reward = 'file'", &["make", "true"]), [true, true]);
    assert_eq!(asks("reward = 'file'", &["make", &write]), [false, true]);
    assert_eq!(
        asks("reward = 'exit_codes'", &[&write, TEST_SCRIPT]),
        [false, false]
    );
    // A setup command or a service may write what writes it.
    let setup = "setup = ['echo \"echo 1 > ~/logs/verifier/reward.txt\" > run.sh']";
    assert_eq!(asks(setup, &["sh run.sh"]), [true]);
    assert_eq!(
        asks("test_script = 'true'", &["pytest", TEST_SCRIPT]),
        [false, true]
    );
}

#[test]
fn what_is_uploaded_is_read_as_well() {
    let task = Task::from_toml("instruction = 'go'").unwrap();
    let uploads = BTreeMap::from([
        ("a/check".to_owned(), Upload::file("x > reward.txt")),
        ("b".to_owned(), Upload::file(vec![0xff, 0xfe])),
    ]);
    let asked = asking(&task, &uploads, &["sh a/check", "true"]);
    assert_eq!(asked, [true, false]);
}

#[test]
fn only_a_finite_number_is_a_reward() {
    assert_eq!(parse(" 0.25\n"), Written::Number(0.25));
    assert_eq!(parse("-1"), Written::Number(-1.0));
    for text in ["", "\n", "nan", "inf", "-inf", "passed", "1.0 2.0"] {
        let useless = parse(text);
        let is_told =
            matches!(&useless, Written::Useless(remark) if remark.code == Code::RewardUnreadable);
        assert!(is_told, "{text}: {useless:?}");
    }
}

#[test]
fn a_value_beyond_its_range_is_told_and_beyond_the_tasks_own_it_is_0() {
    let shown = |reward, range| {
        let grade = within(reward, range);
        (
            grade.reward,
            grade.remarks.first().map(|remark| remark.code),
        )
    };
    let told = Some(Code::RewardOutOfRange);
    assert_eq!(shown(1.0, None), (1.0, None));
    assert_eq!(shown(1000.0, None), (1000.0, told));
    assert_eq!(shown(-0.5, None), (-0.5, told));
    assert_eq!(shown(1000.0, Some([0.0, 1.0])), (0.0, told));
    assert_eq!(shown(-0.5, Some([-1.0, 1.0])), (-0.5, None));
}
