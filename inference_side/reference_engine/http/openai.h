// The bodies of OpenAI's completions as this engine takes and gives them: JSON to requests, tokens
// to JSON. Pure.
//
// Prompts are text or tokens. Text is for models whose tokens are bytes (a vocabulary of at least
// 256 and no tokenizer: token b is the byte b), which is what wsync's trainer makes; other models
// take tokens, and give tokens back beside an empty text.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "inference_side/reference_engine/generation/service.h"
#include "inference_side/reference_engine/http/utf8.h"

namespace wsync::engine::http {

inline constexpr std::uint32_t kByteTokens = 256;  // a vocabulary of bytes has as many at least
// A larger one has other tokens as well: its tokenizer is elsewhere.
inline constexpr std::uint32_t kByteVocabularyMax = 512;
inline constexpr std::uint32_t kMaxOutputs = 128;  // n
inline constexpr std::uint64_t kMaxPrompts = 1024;
inline constexpr std::uint64_t kMaxRequests = 1024;  // of one body: prompts times n
// Tokens and log-probabilities that the answer to one body may have: some hundred bytes each.
inline constexpr std::uint64_t kMaxAnswerItems = 1U << 20U;
inline constexpr std::uint64_t kMaxPromptTokens = 1U << 24U;  // of all requests of one body

struct CompletionRequest {
  // Prompt by prompt, each with its n outputs: output i of prompt p is choice p * outputs + i.
  std::vector<generation::Request> requests;
  std::uint32_t outputs = 1;  // n
  bool byte_tokens = false;   // the model's tokens are bytes
  bool stream = false;
  bool logprobs = false;          // asked for, even with none but the chosen token
  bool return_token_ids = false;  // as vLLM: token_ids and prompt_token_ids in every choice
};
// Reads the fields model, prompt, n, max_tokens, temperature, top_p, seed, stop, stop_token_ids,
// logprobs, stream, and those of vLLM: ignore_eos and return_token_ids. `byte_tokens`: the tokens
// of the model are bytes. kInvalidInput names the field, what was found and what is expected, also
// for a field that is not one of these; kNotFound: another model is asked for. null is as if the
// field were left out.
[[nodiscard]] Result<CompletionRequest> read_completion(std::string_view body,
                                                        const generation::ServiceInfo& info,
                                                        bool byte_tokens);
// What all answers to one request begin with.
struct CompletionHead {
  std::string id;
  std::int64_t created = 0;  // seconds since 1970
  std::string model;
};

// How far a choice has been told.
struct ChoiceProgress {
  Utf8Decoder text;  // holds back a character that is not whole yet
  std::uint32_t tokens = 0;
  bool begun = false;
};

// The whole answer; `outputs` are all that was delivered of each of the requests.
[[nodiscard]] nlohmann::json completion_json(const CompletionHead& head,
                                             const CompletionRequest& request,
                                             const std::vector<generation::Delivery>& outputs);
// One event of a stream: what is new of choice `index`.
[[nodiscard]] nlohmann::json chunk_json(const CompletionHead& head,
                                        const CompletionRequest& request, std::size_t index,
                                        const generation::Delivery& news, ChoiceProgress& progress);
// {"error": {"message", "type", "param", "code"}}; `code` may be empty.
[[nodiscard]] nlohmann::json error_json(int status, std::string_view message,
                                        std::string_view code = {});
// On one line. Bytes that are not UTF-8 become U+FFFD.
[[nodiscard]] std::string json_line(const nlohmann::json& json);

}  // namespace wsync::engine::http
