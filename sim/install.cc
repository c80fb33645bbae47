// The simulator as a device of Weft's own: what arch/cdna asks of it.
#include <string>
#include <utility>

#include "arch/cdna/hip.h"
#include "arch/cpu/dispatch.h"
#include "sim/hip.h"

namespace weft::sim {
namespace {

weft::Counters device_counters() {
  const LaunchReport& r = last_launch();
  const Counters& c = r.counters;
  weft::Counters out;
  const auto add = [&](std::string name, uint64_t value) {
    out.entries.push_back({std::move(name), static_cast<double>(value)});
  };
  for (int k = 0; k < kClasses; ++k) {
    add(std::string(name_of(static_cast<Class>(k))) + " instructions",
        c.instructions[static_cast<size_t>(k)]);
  }
  add("bytes from HBM", c.hbm_bytes_read);
  add("bytes to HBM", c.hbm_bytes_written);
  add("64-byte requests", c.global_requests);
  add("64-byte requests, at least", c.global_requests_least);
  add("bytes from LDS", c.lds_bytes_read);
  add("bytes to LDS", c.lds_bytes_written);
  add("LDS cycles", c.lds_cycles);
  add("LDS bank conflict cycles", c.lds_conflict_cycles);
  add("matrix cycles", c.matrix_cycles);
  add("vector cycles", c.vector_cycles);
  add("barriers", c.barriers);
  add("scratch bytes", c.scratch_bytes);
  const Bound bound = r.bound();
  out.bound = bound.seconds();
  out.bound_by = bound.limit();
  return out;
}

}  // namespace

void install() {
  if (cpu::detected_isa() < cpu::Isa::avx2) {
    cdna::refuse_simulator("the simulator needs a processor with AVX2");
    return;
  }
  cdna::set_simulator({.api = &hip_api(),
                       .ordinal = &hip_ordinal,
                       .findings = &last_findings,
                       .counters = &device_counters});
}

}  // namespace weft::sim
