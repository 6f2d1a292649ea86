#include "inference_side/staging/registration.h"

#include <array>

#include "shared/base/check.h"
#include "shared/base/format.h"

namespace wsync::staging {
namespace {

constexpr auto kRegistrationTransitions = [] {
  using enum RegistrationState;
  return std::array<Transition<RegistrationState>, 10>{{
      {kIdle, "the port has connected", kRegistering, "Hello"},
      {kIdle, "Welcome", kWelcomed, "Hello"},
      {kRegistering, "the port has connected again, or no answer has arrived for hello_retry",
       kRegistering, "Hello"},
      {kRegistering, "Welcome", kWelcomed, "Hello unless one was sent under its fence"},
      {kWelcomed, "Welcome", kWelcomed, "Hello unless it answers one"},
      {kWelcomed, "no Welcome has answered its Hello for hello_retry, and no outcome is due",
       kWelcomed, "Hello"},
      {kWelcomed, "a copy was lost, and no outcome is due", kWelcomed, "Hello"},
      {kWelcomed, "the port has connected again", kRegistering, "Hello"},
      {kWelcomed, "the coordinator is lost or leaves", kRegistering, "Hello after hello_retry"},
      {kIdle, "the coordinator is lost", kRegistering, "Hello after hello_retry"},
  }};
}();

}  // namespace

std::string_view registration_state_name(RegistrationState state) noexcept {
  switch (state) {
    case RegistrationState::kIdle:
      return "idle";
    case RegistrationState::kRegistering:
      return "registering";
    case RegistrationState::kWelcomed:
      return "welcomed";
  }
  return "unknown";
}

TransitionTable registration_transitions() {
  return describe<RegistrationState>(
      "Registration", "The registration of a sidecar with the coordinator of its fleet.",
      kRegistrationTransitions, registration_state_name);
}

void Registration::move(RegistrationState to) {
  WSYNC_CHECK(allows<RegistrationState>(kRegistrationTransitions, state_, to),
              fmt::format("the registration cannot go from {} to {}",
                          registration_state_name(state_), registration_state_name(to)));
  state_ = to;
}

void Registration::connect() {
  move(RegistrationState::kRegistering);
  awaited_ = 0;
  first_ = 0;
}

void Registration::lose(TimePoint now) {
  move(RegistrationState::kRegistering);
  awaited_ = 0;
  hello_at_ = now + retry_;
}

std::uint64_t Registration::send(const control::Fence& fence, TimePoint now) {
  ++request_;
  if (first_ == 0) first_ = request_;
  // The answer to any repetition will do, but no answer to a Hello before the first one.
  if (awaited_ == 0 || hello_requested_ || fence_ != fence) awaited_ = request_;
  hello_requested_ = false;
  hello_at_ = now + retry_;
  fence_ = fence;
  return request_;
}

bool Registration::welcome(std::uint64_t request, const control::Fence& fence) {
  move(RegistrationState::kWelcomed);
  if (request == 0 || fence_ != fence) {
    awaited_ = 0;
    return true;
  }
  // A Welcome that answers any Hello under its fence requires no other Hello at once. An
  // unnecessary Hello would look like a sidecar that has lost its messages, and would remove it
  // from its round.
  if (awaited_ != 0 && request >= awaited_) hello_at_.reset();
  return false;
}

bool Registration::is_due(TimePoint now) const { return hello_at_ && now >= *hello_at_; }

Result<> Registration::invariants() const {
  if (state_ == RegistrationState::kRegistering && !hello_at_)
    return fail(ErrorCode::kInternal, "a sidecar waits for a Welcome, and repeats no Hello");
  return {};
}

}  // namespace wsync::staging
