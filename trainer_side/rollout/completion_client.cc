#include "trainer_side/rollout/completion_client.h"

#include <utility>

#include "shared/base/clock.h"
#include "shared/base/format.h"
#include "shared/observe/http/http_client.h"
#include "trainer_side/rollout/completion_answer.h"

namespace wsync::rollout {
namespace {

constexpr const char* kCompletionsPath = "/v1/completions";
constexpr const char* kReadyPath = "/ready";
constexpr const char* kVersionPath = "/weight_info";

// Returns the error for a response whose status is not 200.
tl::unexpected<Error> refusal(const std::string& path, const http::ClientResponse& answer) {
  const std::string said = read_refusal(answer.body);
  if (answer.status == 503)
    return fail(ErrorCode::kBusy, fmt::format("{} is not ready: {}", path, said));
  if (answer.status == 429)
    return fail(ErrorCode::kBusy, fmt::format("{} is overloaded: {}", path, said));
  return fail(ErrorCode::kRefused,
              fmt::format("{} was answered with status {}: {}", path, answer.status, said));
}

}  // namespace

struct CompletionClient::State {
  std::string url;
  std::chrono::milliseconds deadline;
  std::unique_ptr<http::HttpClient> client;

  // Returns the body of an answer with status 200. Sends GET if `body` is empty.
  [[nodiscard]] Result<std::string> ask(const std::string& path, std::string body,
                                        std::uint64_t max_bytes, TimePoint until) {
    auto answer = WSYNC_TRY(client->ask({.path = path,
                                         .body = std::move(body),
                                         .max_bytes = max_bytes + http::kMaxResponseHeadBytes,
                                         .deadline = until}));
    if (answer.status != 200) return refusal(path, answer);
    return std::move(answer.body);
  }

  [[nodiscard]] Result<Version> served() {
    const TimePoint until = now() + deadline;
    (void)WSYNC_TRY(ask(kReadyPath, {}, kAnswerFrameBytes, until));
    const auto body = WSYNC_TRY(ask(kVersionPath, {}, kAnswerFrameBytes, until));
    return read_served(body);
  }
};

CompletionClient::CompletionClient(std::unique_ptr<State> state) : state_(std::move(state)) {}
CompletionClient::~CompletionClient() = default;

Result<std::unique_ptr<CompletionClient>> CompletionClient::create(
    const std::string& url, std::chrono::milliseconds deadline, const std::string& authorization) {
  auto endpoint = WSYNC_TRY(http::parse_url(url));
  endpoint.authorization = authorization;
  auto client = WSYNC_TRY(http::HttpClient::create(std::move(endpoint)));
  return std::unique_ptr<CompletionClient>(new CompletionClient(std::make_unique<State>(
      State{.url = url, .deadline = deadline, .client = std::move(client)})));
}

Result<std::vector<Rollout>> CompletionClient::ask(const CompletionQuestion& question) {
  const auto body = state_->ask(kCompletionsPath, question_body(question),
                                max_answer_bytes(question), now() + state_->deadline);
  auto rollouts = body ? read_answer(*body, question, state_->url)
                       : Result<std::vector<Rollout>>(fail(body.error()));
  if (!rollouts) return fail(rollouts.error().with_context(state_->url));
  return rollouts;
}

Result<Version> CompletionClient::served() {
  auto version = state_->served();
  if (!version) return fail(version.error().with_context(state_->url));
  return version;
}

void CompletionClient::cancel() noexcept { state_->client->cancel(); }

const std::string& CompletionClient::url() const noexcept { return state_->url; }

}  // namespace wsync::rollout
