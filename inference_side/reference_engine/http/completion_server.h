// CompletionServer: the HTTP server of a generating engine. It offers OpenAI's completions, health
// and readiness, and the pauses that reinforcement learning needs, in vLLM's form.
//
//   POST /v1/completions     streaming (server-sent events) or not
//   GET  /health             200 while the process lives
//   GET  /ready              200 while it serves a version; 503 with the reason before that, and
//                            while a client's pause lasts
//   GET  /weight_info        the version that it serves
//   GET  /stats              counts of waiting and running requests and of cached blocks
//   POST /pause?mode=abort|wait|keep&clear_cache=true|false&timeout_s=N    GET /is_paused
//   POST /resume             POST /reset_prefix_cache
//
// The default of clear_cache is true, except for mode=keep. A completion is cancelled if its client
// closes the connection or its sending half. Errors are JSON in OpenAI's form. Requests from web
// pages (with an Origin header) are refused.
//
// Thread: the owner's, except stop(), which any thread may call.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "inference_side/reference_engine/generation/service.h"
#include "shared/observe/http/access_token.h"
#include "shared/observe/http/http_server.h"

namespace wsync::engine::http {

struct CompletionServerOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;  // 0: the kernel chooses
  // What clients must show, except for /health and /ready. std::nullopt: no client must, and then
  // only this host may reach the server.
  std::optional<wsync::http::AccessToken> token = {};
  // Maximum number of completions that run at the same time, each with its own thread. Further ones
  // are refused with status 429. Other routes have additional threads.
  std::uint32_t threads = 512;
  // Whether the model has its own tokenizer. The tokenizer is not read, so prompts must be tokens.
  // Otherwise tokens are bytes if the vocabulary has 256 to 512 tokens.
  bool has_tokenizer = false;
};

class Completions;

class CompletionServer {
 public:
  // Binds and listens, but answers no request before start(). `service` is borrowed. Errors contain
  // host, port and reason: kInvalidInput, or kBusy if the address is in use; kRefused if `host` can
  // be reached from other hosts and there is no token.
  [[nodiscard]] static Result<std::unique_ptr<CompletionServer>> create(
      const CompletionServerOptions& options, generation::GenerationService& service);
  ~CompletionServer();
  CompletionServer(const CompletionServer&) = delete;
  CompletionServer& operator=(const CompletionServer&) = delete;

  [[nodiscard]] std::uint16_t port() const noexcept;
  void start();
  // Accepts no more requests, asks the service to abort the running completions, and returns when
  // every connection has ended. This takes seconds, or until a pause in progress returns.
  void stop();

 private:
  CompletionServer(std::unique_ptr<Completions> completions,
                   std::unique_ptr<wsync::http::HttpServer> server);

  std::unique_ptr<Completions> completions_;
  // Destroyed first, so stopped while the completions still exist.
  std::unique_ptr<wsync::http::HttpServer> server_;
};

}  // namespace wsync::engine::http
