#include "tests/soak/load.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <random>
#include <thread>

#include "shared/base/format.h"
#include "shared/base/units.h"
#include "shared/observe/http/http_client.h"
#include "tests/soak/answer.h"

namespace wsync::soak {
namespace {

using http::HttpClient;

constexpr std::uint64_t kRecomputeEvery = 16;  // one of this many answers that no switch affected
constexpr std::chrono::minutes kAnswerDeadline{2};
constexpr std::uint64_t kMaxAnswerBytes = 16 * limits::kMiB;

}  // namespace

struct Load::State {
  explicit State(const LoadOptions& how) : options(how), oldest(how.oldest) {}

  void run(unsigned client);
  Result<> ask(HttpClient& client, unsigned number, std::mt19937_64& random);
  void failed(const Error& error);

  const LoadOptions options;
  std::atomic<bool> stopping = false;
  std::atomic<unsigned> running = 0;
  mutable std::mutex mutex;  // guards the fields below
  Version oldest;
  LoadFigures figures;
  std::optional<Error> failure;
  std::vector<HttpClient*> clients;
  bool cancelled = false;

  std::vector<std::thread> threads;  // used by the owner only
};

void Load::State::failed(const Error& error) {
  stopping = true;
  const std::lock_guard lock(mutex);
  if (!failure && !cancelled) failure = error;
}

Result<> Load::State::ask(HttpClient& client, unsigned number, std::mt19937_64& random) {
  std::vector<std::uint32_t> prompt(options.prompt);
  for (std::uint32_t& token : prompt)
    token = static_cast<std::uint32_t>(random() % options.vocabulary);
  Asked asked{.tokens =
                  options.shortest +
                  static_cast<std::uint32_t>(random() % (options.longest - options.shortest + 1))};
  {
    const std::lock_guard lock(mutex);
    asked.oldest = oldest;
  }
  const auto reply =
      client.ask({.path = "/v1/completions",
                  .body = fmt::format(
                      R"({{"prompt": [{}], "max_tokens": {}, "temperature": 1, "logprobs": 0, )"
                      R"("return_token_ids": true}})",
                      fmt::join(prompt, ", "), asked.tokens),
                  .max_bytes = kMaxAnswerBytes,
                  .deadline = now() + kAnswerDeadline});
  if (!reply) return fail(reply.error().with_context(fmt::format("client {}", number)));
  if (reply->status != 200)
    return fail(ErrorCode::kRefused, fmt::format("client {}: the engine answered {}: {}", number,
                                                 reply->status, reply->body));
  const auto answer = read_answer(reply->body, asked);
  std::unique_lock lock(mutex);
  const bool met = answer && answer->spans.size() > 1;
  const bool due =
      options.recomputed != nullptr && answer && (met || figures.answers % kRecomputeEvery == 0);
  lock.unlock();
  const Result<double> difference =
      due ? options.recomputed->difference(prompt, *answer) : Result<double>(0);
  lock.lock();
  ++figures.answers;
  if (met) ++figures.met;
  if (due) ++figures.recomputed;
  if (answer && difference) {
    figures.tokens += asked.tokens;
    if (due) figures.recomputed_tokens += asked.tokens;
    figures.difference_max = std::max(figures.difference_max, *difference);
    figures.newest = std::max(figures.newest, answer->spans.back().version);
    return {};
  }
  ++figures.wrong;
  if (figures.faults.size() < kFaultsTold)
    figures.faults.push_back(fmt::format("answer {}, of client {}: {}", figures.answers, number,
                                         (answer ? difference.error() : answer.error()).message()));
  return {};
}

void Load::State::run(unsigned client) {
  const auto body = [&]() -> Result<> {
    auto connection = WSYNC_TRY(HttpClient::create({.host = "127.0.0.1", .port = options.port}));
    {
      const std::lock_guard lock(mutex);
      clients[client] = connection.get();
      if (cancelled) stopping = true;
    }
    std::mt19937_64 random(client);
    Result<> asked;
    while (!stopping && asked) asked = ask(*connection, client, random);
    const std::lock_guard lock(mutex);
    clients[client] = nullptr;
    return asked;
  };
  if (const Result<> done = body(); !done) failed(done.error());
  --running;
}

Load::Load(const LoadOptions& options) : state_(std::make_unique<State>(options)) {
  state_->clients.resize(options.requests);
  state_->running = options.requests;
  for (unsigned client = 0; client < options.requests; ++client)
    state_->threads.emplace_back([state = state_.get(), client] { state->run(client); });
}

Load::~Load() {
  state_->stopping = true;
  {
    const std::lock_guard lock(state_->mutex);
    state_->cancelled = true;
    for (HttpClient* client : state_->clients)
      if (client != nullptr) client->cancel();
  }
  for (std::thread& thread : state_->threads) thread.join();
}

void Load::served(const Version& version) {
  const std::lock_guard lock(state_->mutex);
  state_->oldest = version;
}

void Load::stop_asking() noexcept { state_->stopping = true; }

bool Load::ended() const { return state_->running == 0; }

Result<> Load::check() const {
  const std::lock_guard lock(state_->mutex);
  if (state_->failure) return fail(*state_->failure);
  return {};
}

LoadFigures Load::figures() const {
  const std::lock_guard lock(state_->mutex);
  return state_->figures;
}

}  // namespace wsync::soak
