#include "inference_side/sidecar/version_readers.h"

#include <algorithm>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/base/planted.h"

namespace wsync::agent {
namespace {

void refuse(EngineRank& reader, std::uint64_t request, std::string why) {
  log_info("reader '{}' gets no version: {}", reader.replica, why);
  reader.send(request, control::Refuse{.reason = std::move(why), .problems = {}});
}

Result<> send_version(EngineRank& reader, std::uint64_t request,
                      const staging::HeldVersion& version) {
  std::vector<UniqueFd> fds;
  fds.push_back(WSYNC_TRY(version.share()));
  ByteWriter layout;
  version.manifest()->encode(layout);
  control::Prepare message;
  message.version = version.version();
  message.layout_digest = version.identity().layout;
  message.layout = std::move(layout).take();
  message.bucket_bytes = version.plan()->bucket_bytes();
  message.arena_bytes = version.arena_bytes();
  message.is_verified = version.is_verified();
  reader.send(request, message, std::move(fds));
  return {};
}

std::string names_of(const std::vector<Version>& versions) {
  std::string names;
  for (const Version& each : versions) names += (names.empty() ? "" : ", ") + each.to_string();
  return names.empty() ? "none" : names;
}

}  // namespace

void VersionReaders::ask(const std::shared_ptr<EngineRank>& reader, std::uint64_t request,
                         const control::ReadVersion& question) {
  lost(reader);
  questions_.push_back({.reader = reader, .request = request, .what = question});
  advance();
}

void VersionReaders::lost(const std::shared_ptr<EngineRank>& reader) {
  std::erase_if(questions_, [&](const Question& each) { return each.reader == reader; });
}

Result<Version> VersionReaders::find(const control::ReadVersion& question) const {
  const std::vector<Version> staged = versions_.staged();
  if (!question.has_step) {
    const Version target =
        planted("reader_gets_undecided") && !staged.empty() ? staged.back() : versions_.target();
    // A target that is not staged here yet is awaited.
    const bool is_new = target != question.after && versions_.find(target) != nullptr;
    return is_new ? target : Version{};
  }
  Version found;
  Version newest;
  for (const Version& each : staged) {
    // Of several epochs, the newest.
    if (each.step == question.step) found = each;
    newest = each;
  }
  if (!found.none() || newest.none() || newest.step < question.step) return found;
  return fail(ErrorCode::kNotFound,
              fmt::format("no version of step {} is staged here, and later ones are (staged: {}): "
                          "ask for one of them, or raise `versions_held` of the sidecar",
                          question.step, names_of(staged)));
}

bool VersionReaders::answer(Question& question) {
  const auto wanted = find(question.what);
  if (!wanted) {
    refuse(*question.reader, question.request, wanted.error().message());
    return true;
  }
  if (wanted->none()) return false;
  question.verifying = *wanted;
  const auto version = versions_.find(*wanted);
  versions_.verify(
      version, [this, reader = question.reader, request = question.request,
                version](const Result<>& outcome) { verified(reader, request, version, outcome); });
  return false;
}

void VersionReaders::verified(const std::shared_ptr<EngineRank>& reader, std::uint64_t request,
                              const ReadableVersions::Held& version, const Result<>& outcome) {
  const auto found = std::ranges::find_if(questions_, [&](const Question& each) {
    return each.reader == reader && each.request == request && each.verifying == version->version();
  });
  if (found == questions_.end()) return;  // it has gone, or has asked another question
  questions_.erase(found);
  Result<> sent = outcome;
  if (sent) sent = send_version(*reader, request, *version);
  if (!sent) return refuse(*reader, request, sent.error().message());
  log_info("reader '{}' (pid {}) gets {}", reader->replica, reader->pid,
           version->version().to_string());
}

void VersionReaders::advance() {
  // An answer may come inside the call, and remove its question.
  std::vector<std::shared_ptr<EngineRank>> open;
  for (Question& each : questions_) {
    // A version that is released is not verified to the end. Another one may answer.
    if (versions_.find(each.verifying) == nullptr) each.verifying = {};
    if (each.verifying.none()) open.push_back(each.reader);
  }
  for (const auto& reader : open) {
    const auto found = std::ranges::find(questions_, reader, &Question::reader);
    if (found != questions_.end() && answer(*found)) lost(reader);
  }
}

}  // namespace wsync::agent
