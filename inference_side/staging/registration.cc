#include "inference_side/staging/registration.h"

#include <array>

#include "shared/base/check.h"
#include "shared/base/format.h"

namespace wsync::staging {
namespace {

constexpr auto kRegistrationTransitions = [] {
  using enum RegistrationState;
  return std::array<Transition<RegistrationState>, 9>{{
      {kIdle, "the port has connected", kRegistering, "Hello"},
      {kIdle, "Welcome", kWelcomed, "Hello"},
      {kRegistering, "the port has connected again, or no answer has arrived for hello_retry",
       kRegistering, "Hello"},
      {kRegistering, "Welcome", kWelcomed, "Hello unless one was sent under its fence"},
      {kWelcomed, "Welcome", kWelcomed, "Hello unless it answers one"},
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

void Registration::connect() { move(RegistrationState::kRegistering); }

void Registration::lose(TimePoint now) {
  move(RegistrationState::kRegistering);
  hello_at_ = now + retry_;
}

std::uint64_t Registration::send(const control::Fence& fence, TimePoint now) {
  hello_requested_ = false;
  if (!welcomed()) hello_at_ = now + retry_;
  fence_ = fence;
  return ++request_;
}

bool Registration::welcome(std::uint64_t request, const control::Fence& fence) {
  move(RegistrationState::kWelcomed);
  hello_at_.reset();
  // Once a Hello was sent under the fence of this Welcome, a Welcome that answers any Hello
  // requires no other Hello. An unnecessary Hello would look like a sidecar that has lost its
  // messages, and would remove it from its round.
  return request == 0 || fence_ != fence;
}

bool Registration::is_due(TimePoint now) const {
  return !welcomed() && hello_at_ && now >= *hello_at_;
}

Result<> Registration::invariants() const {
  if (welcomed() && hello_at_)
    return fail(ErrorCode::kInternal, "a welcomed sidecar repeats its Hello");
  return {};
}

}  // namespace wsync::staging
