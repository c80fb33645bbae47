// What libweft-amdhip64.so has besides sim/hip.cc's functions: as a driver does, it says on stderr
// what a launch did wrong, and a program may ask for it.
#include <string>

#include "sim/hip.h"

namespace weft::sim {
namespace {

[[maybe_unused]] const bool kSpeaks = [] {
  set_findings_to_stderr(true);
  return true;
}();

}  // namespace

/// The last launch's findings, a sentence each line, and its counters; valid until the thread's
/// next call. Programs find these two by name with dlsym.
extern "C" __attribute__((visibility("default"))) const char* weft_sim_findings() {
  thread_local std::string text;
  text = last_findings();
  return text.c_str();
}
extern "C" __attribute__((visibility("default"))) const char* weft_sim_counters() {
  thread_local std::string text;
  text = last_launch().text();
  return text.c_str();
}

}  // namespace weft::sim
