// Any body either makes requests that the engine takes, whose outputs make JSON of valid UTF-8, or
// one error of bad input or of another model; for a model of bytes and for one with a tokenizer.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "inference_side/reference_engine/http/openai.h"
#include "shared/base/check.h"

namespace {

using namespace wsync;
using namespace wsync::engine;
using namespace wsync::engine::http;

generation::ServiceInfo model_info() {
  return {.model = "tiny",
          .vocabulary = 300,
          .max_positions = 64,
          .end_token = generation::Token{256},
          .has_weights = true};
}

// The prompt given back as output, whole and token by token, has the same text.
void check_output(const CompletionRequest& request, std::size_t index) {
  std::vector<generation::Delivery> outputs(request.requests.size());
  ChoiceProgress progress;
  std::string streamed;
  for (const generation::Token token : request.requests[index].prompt) {
    const generation::Delivery news{{{.token = token}}, {}};
    outputs[index].tokens.push_back(news.tokens.front());
    const auto chunk = chunk_json({}, request, index, news, progress);
    streamed += chunk["choices"][0]["text"].get<std::string>();
  }
  outputs[index].finished = generation::FinishReason::kLength;
  streamed += chunk_json({}, request, index, {{}, generation::FinishReason::kLength},
                         progress)["choices"][0]["text"]
                  .get<std::string>();
  const auto whole = completion_json({}, request, outputs);
  WSYNC_CHECK(whole["choices"][index]["text"] == streamed, "a stream has the text of the whole");
  (void)whole.dump();  // which takes nothing but UTF-8
}

void check(std::string_view body, bool byte_tokens) {
  const generation::ServiceInfo info = model_info();
  const Result<CompletionRequest> read = read_completion(body, info, byte_tokens);
  if (!read) {
    WSYNC_CHECK(read.error().code() == ErrorCode::kInvalidInput ||
                    read.error().code() == ErrorCode::kNotFound,
                "a bad body is bad input");
    return;
  }
  WSYNC_CHECK(!read->requests.empty() && read->requests.size() <= kMaxRequests &&
                  read->requests.size() % read->outputs == 0,
              "every prompt has its outputs");
  for (const generation::Request& request : read->requests)
    WSYNC_CHECK(generation::check_request(request, info.vocabulary, info.max_positions).has_value(),
                "what is read is taken");
  check_output(*read, 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  check(body, true);
  check(body, false);
  return 0;
}
