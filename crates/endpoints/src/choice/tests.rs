use super::*;

fn resolve(
    request: EndpointRequest,
    variables: &[(&str, &str)],
) -> Result<EndpointChoice, EndpointError> {
    request.resolve(|name| {
        variables
            .iter()
            .find(|(key, _)| *key == name)
            .map(|(_, value)| (*value).to_owned())
    })
}

fn kind(name: &str) -> EndpointRequest {
    EndpointRequest {
        kind: Some(name.to_owned()),
        ..EndpointRequest::default()
    }
}

#[track_caller]
fn url(choice: Result<EndpointChoice, EndpointError>) -> Endpoint {
    match choice {
        Ok(EndpointChoice::Url(endpoint)) => endpoint,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_default_is_scripted() {
    assert!(matches!(
        resolve(EndpointRequest::default(), &[]),
        Ok(EndpointChoice::Scripted)
    ));
    assert!(matches!(
        resolve(kind("scripted"), &[]),
        Ok(EndpointChoice::Scripted)
    ));
}

#[test]
fn an_explicit_value_beats_the_variable_which_beats_the_default() {
    let endpoint = url(resolve(kind("vllm"), &[("VLLM_URL", "http://gpu:8000/")]));
    assert_eq!(
        (endpoint.base_url.as_str(), endpoint.model.as_str()),
        ("http://gpu:8000/v1", ""),
        "it is asked which model it serves"
    );
    assert!(endpoint.is_thinking_disabled);
    let request = EndpointRequest {
        model: Some("m".into()),
        ..kind("vllm")
    };
    let endpoint = url(resolve(
        request,
        &[("VLLM_URL", "http://gpu:8000/v1"), ("VLLM_MODEL", "x")],
    ));
    assert_eq!(
        (endpoint.base_url.as_str(), endpoint.model.as_str()),
        ("http://gpu:8000/v1", "m")
    );
}

#[test]
fn a_model_may_have_a_provider_prefix() {
    let key = ("OPENROUTER_API_KEY", "k");
    let model = |text: &str| EndpointRequest {
        model: Some(text.to_owned()),
        ..EndpointRequest::default()
    };
    let endpoint = url(resolve(model("openrouter/anthropic/claude"), &[key]));
    assert_eq!(
        (endpoint.kind.as_str(), endpoint.model.as_str()),
        ("openrouter", "anthropic/claude")
    );
    assert_eq!(endpoint.base_url, "https://openrouter.ai/api/v1");
    let endpoint = url(resolve(
        model("vllm://Qwen/Qwen3-4B"),
        &[("VLLM_URL", "http://gpu")],
    ));
    assert_eq!(
        (endpoint.kind.as_str(), endpoint.model.as_str()),
        ("vllm", "Qwen/Qwen3-4B")
    );
    // With a URL or an endpoint, the whole text is the model's name.
    let request = EndpointRequest {
        base_url: Some("http://gpu".into()),
        ..model("openrouter/x")
    };
    assert_eq!(url(resolve(request, &[key])).model, "openrouter/x");
    let request = EndpointRequest {
        kind: Some("vllm".into()),
        ..model("openai/gpt-oss-20b")
    };
    let endpoint = url(resolve(request, &[("VLLM_URL", "http://gpu")]));
    assert_eq!(endpoint.model, "openai/gpt-oss-20b");
    assert!(matches!(
        resolve(model("Qwen/Qwen3-4B"), &[]),
        Err(EndpointError::NoBaseUrl { .. })
    ));
}

#[test]
fn a_url_gets_its_providers_path() {
    let check = |text: &str, path: &str, expect: &str| {
        assert_eq!(normalise(text, path).unwrap(), expect);
    };
    check("http://gpu:8000/", "/v1", "http://gpu:8000/v1");
    check("http://gpu/v1/", "/v1", "http://gpu/v1");
    check("http://gpu/proxy", "/v1", "http://gpu/proxy/v1");
    for given in [
        "https://r.azure.com",
        "https://r.azure.com/openai/",
        "https://r.azure.com/openai/v1",
    ] {
        check(given, "/openai/v1", "https://r.azure.com/openai/v1");
    }
    check("https://z.ai/api", "", "https://z.ai/api");
    let variables = [
        ("AZURE_OPENAI_ENDPOINT", "https://r.openai.azure.com"),
        ("AZURE_OPENAI_API_KEY", "k"),
        ("AZURE_OPENAI_DEPLOYMENT", "d"),
    ];
    let endpoint = url(resolve(kind("azure"), &variables));
    assert_eq!(endpoint.base_url, "https://r.openai.azure.com/openai/v1");
    assert_eq!(endpoint.auth, Auth::ApiKey);
}

#[test]
fn a_shared_token_stays_with_its_provider() {
    let token = [("HF_TOKEN", "hf-secret")];
    let endpoint = url(resolve(kind("hf-router"), &token));
    assert_eq!(endpoint.key, Some(Secret::new("hf-secret")));
    let elsewhere = EndpointRequest {
        base_url: Some("https://elsewhere.example".into()),
        ..kind("hf_router")
    };
    assert!(matches!(
        resolve(elsewhere, &token),
        Err(EndpointError::NoKey { .. })
    ));
}

#[test]
fn ollama_is_started_only_on_this_machine_without_an_explicit_url() {
    let ollama = |variables: &[(&str, &str)]| {
        let request = EndpointRequest {
            model: Some("ollama/qwen3:4b".into()),
            ..EndpointRequest::default()
        };
        match resolve(request, variables) {
            Ok(EndpointChoice::Managed(managed)) => match managed.server {
                Server::Ollama {
                    host,
                    start,
                    settings,
                } => (host, start, settings.context_tokens),
                Server::Command(server) => panic!("{server:?}"),
            },
            other => panic!("{other:?}"),
        }
    };
    let here = "http://127.0.0.1:11434".to_owned();
    assert_eq!(ollama(&[]), (here, StartPolicy::Start, 32768));
    let set = [
        ("OLLAMA_HOST", "0.0.0.0:9"),
        ("OLLAMA_CONTEXT_LENGTH", "8192"),
    ];
    let here = "http://127.0.0.1:9".to_owned();
    assert_eq!(ollama(&set), (here, StartPolicy::Start, 8192));
    let there = "http://gpu:11434".to_owned();
    let set = [("OLLAMA_HOST", "gpu")];
    assert_eq!(ollama(&set), (there.clone(), StartPolicy::Fail, 32768));
    let set = [
        ("OLLAMA_BASE_URL", "http://gpu:11434/v1"),
        ("OLLAMA_HOST", "x"),
    ];
    assert_eq!(ollama(&set), (there, StartPolicy::Fail, 32768));
}

#[test]
fn anthropic_uses_its_own_dialect_and_needs_a_key() {
    let error = resolve(kind("anthropic"), &[]).unwrap_err().to_string();
    assert!(error.contains("set ANTHROPIC_API_KEY"), "{error}");
    let key = ("ANTHROPIC_API_KEY", "k");
    let endpoint = url(resolve(kind("anthropic"), &[key]));
    assert_eq!(endpoint.url(), "https://api.anthropic.com/v1/messages");
    let local = ("ANTHROPIC_BASE_URL", "http://gateway:4000");
    let endpoint = url(resolve(kind("anthropic"), &[key, local]));
    assert_eq!(endpoint.url(), "http://gateway:4000/v1/messages");
    let custom = EndpointRequest {
        base_url: Some("http://gateway:4000".into()),
        model: Some("m".into()),
        dialect: Some(EndpointDialect::Anthropic),
        ..EndpointRequest::default()
    };
    assert_eq!(
        url(resolve(custom, &[])).url(),
        "http://gateway:4000/v1/messages"
    );
}

#[test]
fn missing_settings_are_named_and_keys_are_not_shown() {
    let error =
        |request, variables: &[(&str, &str)]| resolve(request, variables).unwrap_err().to_string();
    assert!(error(kind("openai"), &[]).contains("set OPENAI_API_KEY"));
    assert!(error(kind("vllm"), &[]).contains("set VLLM_URL"));
    assert!(error(kind("nope"), &[]).contains("vllm, openai, hf_router, "));
    let secret = EndpointRequest {
        base_url: Some("http://me:hunter22@host".into()),
        model: Some("m".into()),
        ..EndpointRequest::default()
    };
    assert!(!error(secret.clone(), &[]).contains("hunter22"));
    let other = EndpointRequest {
        base_url: Some("ftp://me:hunter22@host".into()),
        ..secret
    };
    assert!(!error(other, &[]).contains("hunter22"));
}
