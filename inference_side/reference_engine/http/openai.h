// Bodies of OpenAI's completions as this engine reads and writes them: JSON to requests, tokens to
// JSON. Pure.
//
// Prompts are text or tokens. Text is only for models whose tokens are bytes: no tokenizer and a
// vocabulary of at least 256, where token b is the byte b. wsync's trainer makes such models. Other
// models take tokens, and return tokens with an empty text.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "inference_side/reference_engine/generation/service.h"
#include "inference_side/reference_engine/http/utf8.h"

namespace wsync::engine::http {

inline constexpr std::uint32_t kByteTokens = 256;  // minimum size of a byte vocabulary
// A larger vocabulary has tokens other than bytes and a tokenizer, which is not available here.
inline constexpr std::uint32_t kByteVocabularyMax = 512;
inline constexpr std::uint32_t kMaxOutputs = 128;  // n
inline constexpr std::uint64_t kMaxPrompts = 1024;
inline constexpr std::uint64_t kMaxRequests = 1024;  // in one body: prompts times n
// Maximum number of tokens and log-probabilities in the answer to one body. Each takes some hundred
// bytes.
inline constexpr std::uint64_t kMaxAnswerItems = 1U << 20U;
inline constexpr std::uint64_t kMaxPromptTokens = 1U << 24U;  // of all requests in one body

struct CompletionRequest {
  // Ordered by prompt; each prompt has n outputs. Output i of prompt p is choice p * outputs + i.
  std::vector<generation::Request> requests;
  std::uint32_t outputs = 1;  // n
  bool byte_tokens = false;   // the model's tokens are bytes
  bool stream = false;
  bool logprobs = false;          // requested, even if only for the chosen token
  bool return_token_ids = false;  // as vLLM: token_ids and prompt_token_ids in every choice
};
// Reads the fields model, prompt, n, max_tokens, temperature, top_p, seed, stop, stop_token_ids,
// logprobs and stream, and vLLM's ignore_eos and return_token_ids. A null field counts as absent.
// `byte_tokens`: the tokens of the model are bytes. Returns kInvalidInput, with the field, its
// value and the expected value, for an invalid or unknown field; kNotFound if the requested model
// is another one.
[[nodiscard]] Result<CompletionRequest> read_completion(std::string_view body,
                                                        const generation::ServiceInfo& info,
                                                        bool byte_tokens);
// The fields at the beginning of every answer to a request.
struct CompletionHead {
  std::string id;
  std::int64_t created = 0;  // seconds since 1970
  std::string model;
};

// How much of a choice has been sent.
struct ChoiceProgress {
  Utf8Decoder text;  // holds back an incomplete character
  std::uint32_t tokens = 0;
  bool begun = false;
};

// The complete answer. `outputs` holds everything that was delivered for each request.
[[nodiscard]] nlohmann::json completion_json(const CompletionHead& head,
                                             const CompletionRequest& request,
                                             const std::vector<generation::Delivery>& outputs);
// One event of a stream, with the new part of choice `index`.
[[nodiscard]] nlohmann::json chunk_json(const CompletionHead& head,
                                        const CompletionRequest& request, std::size_t index,
                                        const generation::Delivery& news, ChoiceProgress& progress);
// {"error": {"message", "type", "param", "code"}}; `code` may be empty.
[[nodiscard]] nlohmann::json error_json(int status, std::string_view message,
                                        std::string_view code = {});
// JSON on one line. Bytes that are not UTF-8 are replaced by U+FFFD.
[[nodiscard]] std::string json_line(const nlohmann::json& json);

}  // namespace wsync::engine::http
