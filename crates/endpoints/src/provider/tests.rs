use super::*;

fn own(text: &str) -> Result<Providers, ProviderError> {
    Providers::built_in().with_providers(text, Path::new("/home/me/providers.toml"))
}

#[track_caller]
fn check_error(text: &str, expect: &str) {
    let error = own(text).unwrap_err();
    let text = rollcage_model::text::chain(&error);
    assert!(text.contains("/home/me/providers.toml"), "{text}");
    assert!(text.contains(expect), "{text}");
}

#[test]
fn the_built_in_file_is_valid_and_complete() {
    let read = Providers::default().with_providers(BUILT_IN, Path::new("providers.toml"));
    let names: Vec<_> = read
        .unwrap()
        .providers
        .into_iter()
        .map(|p| p.name)
        .collect();
    let expect = "vllm openai hf_router anthropic gemini openrouter groq together mistral deepseek xai fireworks \
                  cerebras deepinfra moonshot nvidia azure bedrock litellm sglang llama_cpp ollama lm_studio";
    assert_eq!(names.join(" "), expect);
    assert_eq!(Providers::built_in().iter().count(), names.len());
}

#[test]
fn defaults_follow_from_the_name() {
    let groq = Providers::built_in().find("groq").unwrap();
    assert_eq!(groq.url_variables, ["GROQ_BASE_URL"]);
    assert_eq!(groq.key_variables, ["GROQ_API_KEY"]);
    assert_eq!(groq.model_variables, ["GROQ_MODEL"]);
    assert_eq!((groq.auth, groq.path.as_str()), (Auth::Bearer, "/v1"));
    assert_eq!(groq.placeholder_key, None);
    let anthropic = Providers::built_in().find("anthropic").unwrap();
    assert_eq!(anthropic.dialect, EndpointDialect::Anthropic);
    assert_eq!(anthropic.auth, Auth::XApiKey);
}

#[test]
fn a_user_changes_fields_and_adds_providers() {
    let providers = own(
        "[[provider]]\nname = 'openai'\nmodel = 'gpt-5'\n[provider.contexts]\n'mine' = 9\n\
         [[provider]]\nname = 'my-gw'\nbase_url = 'https://gw.example/api'\nauth = 'api-key'\n",
    )
    .unwrap();
    let openai = providers.find("openai").unwrap();
    assert_eq!(openai.model.as_deref(), Some("gpt-5"));
    assert_eq!(
        openai.base_url.as_deref(),
        Some("https://api.openai.com/v1")
    );
    assert_eq!(
        (openai.contexts["mine"], openai.contexts["gpt-4o"]),
        (9, 128_000)
    );
    let own = providers.find("my-gw").unwrap();
    assert_eq!(own.key_variables, ["MY_GW_API_KEY"]);
    assert_eq!(own.auth, Auth::ApiKey);
}

#[test]
fn errors_name_the_file_and_the_key() {
    check_error(
        "[[provider]]\nname = 'x'\nbase_ulr = 'y'\n",
        "unknown field `base_ulr`",
    );
    check_error("[[provider]]\nbase_url = 'y'\n", "missing field `name`");
    check_error(
        "[[provider]]\nname = 'x'\nauth = 'basic'\n",
        "unknown variant `basic`",
    );
    check_error(
        "[[provider]]\nname = 'x'\nbase_url = 'gpu:1'\n",
        "`x`: base_url: `gpu:1` is not an http",
    );
    check_error(
        "[[provider]]\nname = 'x'\nbase_url = 'http://me:hunter22@h'\n",
        "user name or password",
    );
    check_error(
        "[[provider]]\nname = 'x'\npath = 'v1'\n",
        "path: `v1` must start with a slash",
    );
    check_error(
        "[[provider]]\nname = 'x'\nkey_variables = ['sk-1']\n",
        "key_variables: give names",
    );
    check_error("[[provider]]\nname = 'X Y'\n", "name: `X Y` may hold");
    check_error("[[provider]]\nname = 'scripted'\n", "means something else");
    check_error(
        "[[provider]]\nname = 'x'\naliases = ['openai']\n",
        "two providers have this name",
    );
    check_error(
        "[[provider]]\nname = 'x'\n[[provider]]\nname = 'x'\n",
        "there twice",
    );
}

#[test]
fn model_keys_are_parsed() {
    let key = |text| parse_model_key(text).map(|key| (key.provider, key.model, key.form));
    assert_eq!(
        key("vllm://Qwen/Qwen3-4B"),
        Some(("vllm", "Qwen/Qwen3-4B", KeyForm::Url))
    );
    assert_eq!(
        key("hf-router://a/b:nscale"),
        Some(("hf-router", "a/b:nscale", KeyForm::Url))
    );
    assert_eq!(
        key("openrouter/a/b"),
        Some(("openrouter", "a/b", KeyForm::Path))
    );
    for text in ["gpt-4o", "", "/", "vllm://", "://x", "a/"] {
        assert_eq!(key(text), None, "{text}");
    }
}

#[test]
fn only_a_known_provider_is_split_off() {
    let providers = Providers::built_in();
    let split = |text: &str| providers.split_model(text);
    let pair = |provider: &str, model: &str| Ok(Some((provider.to_owned(), model.to_owned())));
    assert_eq!(
        split("openrouter/anthropic/claude"),
        pair("openrouter", "anthropic/claude")
    );
    assert_eq!(split("hf-router://a/b:c"), pair("hf_router", "a/b:c"));
    assert_eq!(
        providers.find("hf_router").map(|p| p.name.as_str()),
        Some("hf_router")
    );
    assert_eq!(split("Qwen/Qwen3-4B"), Ok(None));
    assert_eq!(split("gpt-4o"), Ok(None));
    let error = split("bogus://x").unwrap_err().to_string();
    assert!(error.contains("unknown endpoint kind `bogus`"), "{error}");
}
