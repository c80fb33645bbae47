#include "cli/slot_flags.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <string_view>

#include "cli/common.h"

namespace weft::cli {
namespace {

constexpr double kMiB = 1 << 20;
constexpr double kGiB = 1 << 30;

/// K of "ngram:K", 0 of "none".
std::optional<int64_t> drafted_tokens(std::string_view text) {
  constexpr std::string_view kKind = "ngram:";
  if (text == "none") {
    return 0;
  }
  int64_t count = 0;
  if (!text.starts_with(kKind)) {
    return {};
  }
  text.remove_prefix(kKind.size());
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  const bool number = error == std::errc() && end == text.data() + text.size();
  return number && count >= 1 && count <= kMostDraft ? std::optional(count) : std::nullopt;
}

}  // namespace

void SlotFlags::declare(CLI::App& command) {
  const auto is_draft = [](const std::string& text) {
    return drafted_tokens(text) ? std::string()
                                : fmt::format(
                                      "{} is no kind of draft: use none, or ngram:1 to "
                                      "ngram:{}",
                                      text, kMostDraft);
  };
  command
      .add_option("--draft", draft,
                  "ngram:K, up to K tokens of a step are what followed the last three before; or "
                  "none")
      ->type_name("KIND")
      ->check(CLI::Validator(is_draft, ""))
      ->capture_default_str();
  command.add_option("--draft-memory", draft_memory_mib, "for finding drafts, of all slots")
      ->type_name("MIB")
      ->check(number_within(0.001, 1 << 20))
      ->capture_default_str();
  command
      .add_option(
          "--exact", exact,
          "off: on cuda with up to 32 slots, drafts and prompts that are fed in others' steps "
          "may change a logit's last bits")
      ->type_name("WHETHER")
      ->check(CLI::IsMember({"on", "off"}))
      ->capture_default_str();
  command
      .add_option("--prefix-host-gib", prefix_host_gib,
                  "host memory for beginnings of prompts that nobody has just now")
      ->type_name("GIB")
      ->check(number_within(0, 1 << 20))
      ->capture_default_str();
}

void SlotFlags::apply(SlotsOptions& options) const {
  options.draft = drafted_tokens(draft).value_or(0);
  options.draft_memory = static_cast<int64_t>(draft_memory_mib * kMiB);
  options.exact = exact == "on";
  options.host_bytes = static_cast<int64_t>(prefix_host_gib * kGiB);
}

}  // namespace weft::cli
