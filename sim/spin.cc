#include "sim/spin.h"

#include <algorithm>
#include <bitset>
#include <string_view>
#include <vector>

#include "sim/wave.h"

namespace weft::sim {
namespace {

// What an instruction reads and writes: vector registers, scalar ones, SCC, and the stack as one.
constexpr size_t kScalars = kVectorRegisters;
constexpr size_t kScc = kScalars + 128;
constexpr size_t kStack = kScc + 1;
using Places = std::bitset<kStack + 1>;

bool starts(const Instruction& i, std::string_view text) { return i.row->name.starts_with(text); }
bool has(const Instruction& i, std::string_view text) {
  return i.row->name.find(text) != std::string_view::npos;
}
bool reads_lds(const Instruction& i) { return starts(i, "ds_read") || starts(i, "flat_load"); }
/// Of LDS, with the old value as result.
bool atomic(const Instruction& i) {
  return i.results != 0 && (has(i, "_rtn_") || starts(i, "flat_atomic"));
}
bool loads(const Instruction& i) {
  return i.row->cost == Class::lds || i.row->cost == Class::vmem_load ||
         i.row->cost == Class::vmem_atomic || i.row->cost == Class::smem;
}
bool on_stack(const Instruction& i) { return starts(i, "scratch_") || starts(i, "flat_"); }
bool conditional(const Instruction& i) { return starts(i, "s_cbranch"); }

/// Whether an instruction may be part of a loop that only waits.
bool quiet(const Instruction& i) {
  if (i.row == nullptr) {
    return false;
  }
  switch (i.row->cost) {
    case Class::vmem_store:
      return on_stack(i);
    case Class::vmem_atomic:
      return i.results != 0;
    case Class::lds:
      return i.results != 0 || i.row->name == "ds_nop";
    case Class::smem:
      return i.results != 0 || starts(i, "s_dcache");
    case Class::branch:
      return i.row->name != "s_barrier" && !starts(i, "s_endpgm");
    default:
      return !has(i, "setpc") && !has(i, "swappc") && !starts(i, "s_call") && !has(i, "_gpr_idx");
  }
}

void add(Places& places, const Operand& o) {
  const bool scalar = o.kind == Operand::Kind::sgpr;
  for (size_t r = o.index; (scalar || o.kind == Operand::Kind::vgpr) && r < o.index + o.words;
       ++r) {
    const size_t place = scalar ? kScalars + r : r;
    if (place < kScc) {
      places.set(place);
    }
  }
  if (o.kind == Operand::Kind::special && o.index == Operand::scc) {
    places.set(kScc);
  }
}

Places reads(const Instruction& i) {
  Places places;
  for (int k = 0; k < i.operands; ++k) {
    if (k >= i.results || (i.row->reads_result >> k & 1) != 0) {
      add(places, i.operand[k]);
    }
  }
  if (conditional(i)) {
    if (has(i, "scc")) {
      places.set(kScc);
    } else {
      const size_t mask = kScalars + (has(i, "vcc") ? kVcc : kExec);
      places.set(mask).set(mask + 1);
    }
  } else if (starts(i, "s_cselect") || starts(i, "s_addc") || starts(i, "s_subb")) {
    places.set(kScc);
  }
  if (loads(i) && on_stack(i)) {
    places.set(kStack);
  }
  return places;
}

Places writes(const Instruction& i) {
  Places places;
  for (int k = 0; k < i.results; ++k) {
    add(places, i.operand[k]);
  }
  if (has(i, "saveexec") || starts(i, "v_cmpx")) {
    places.set(kScalars + kExec).set(kScalars + kExec + 1);
  }
  if (i.row->cost == Class::salu && !starts(i, "s_mov") && !starts(i, "s_cselect")) {
    places.set(kScc);
  }
  if (i.row->cost == Class::vmem_store && on_stack(i)) {
    places.set(kStack);
  }
  return places;
}

Places address_of(const Instruction& i) {
  Places places;
  add(places, i.operand[i.results]);
  return places;
}

/// Instructions `first` to `last`, which is the branch back to the first.
struct Loop {
  std::span<const Instruction> code;
  size_t first;
  size_t last;

  /// Whether what instruction `at` finds in these places is the same in every turn.
  bool invariant(size_t at, Places places) const {
    for (size_t k = at; k-- > first && places.any();) {
      const Places result = writes(code[k]);
      if ((result & places).any()) {
        if (loads(code[k])) {
          return false;
        }
        places = (places & ~result) | reads(code[k]);
      }
    }
    for (size_t k = first; k <= last && places.any(); ++k) {
      if ((writes(code[k]) & places).any()) {
        return false;
      }
    }
    return true;
  }

  /// What may depend on the value that instruction `at` reads, after some turns.
  Places tainted_by(size_t at) const {
    Places tainted = writes(code[at]);
    for (size_t before = 0; before != tainted.count();) {
      before = tainted.count();
      for (size_t k = first; k <= last; ++k) {
        if ((reads(code[k]) & tainted).any()) {
          tainted |= writes(code[k]);
        }
      }
    }
    return tainted;
  }

  bool spins(size_t at) const {
    if (!invariant(at, address_of(code[at]))) {
      return false;
    }
    const Places tainted = tainted_by(at);
    bool decides = false;
    for (size_t k = first; k <= last; ++k) {
      const Instruction& i = code[k];
      const Places sources = reads(i);
      if ((sources & tainted).none()) {
        continue;
      }
      decides |= conditional(i);
      // Masks of lanes gather over the turns; numbers must not.
      const bool number =
          i.row->cost == Class::valu || (i.row->cost == Class::salu && !has(i, "_b64"));
      if (number && !invariant(k, sources & ~tainted)) {
        return false;
      }
    }
    return decides;
  }
};

/// Whether two instructions' addresses are the same register, or registers that the same constant
/// was moved to, as far as the code before them tells.
bool same_address(std::span<const Instruction> code, size_t first, size_t second) {
  const auto constant = [&](size_t at) -> const Operand* {
    constexpr size_t kFar = 256;
    const Places address = address_of(code[at]);
    for (const size_t end = at - std::min(at, kFar); at-- > end && code[at].row != nullptr;) {
      if ((writes(code[at]) & address).any()) {
        const Operand& from = code[at].operand[1];
        const bool moves = code[at].row->name == "v_mov_b32";
        return moves && from.kind == Operand::Kind::constant ? &from : nullptr;
      }
    }
    return nullptr;
  };
  if (address_of(code[first]) == address_of(code[second])) {
    return true;
  }
  const Operand* a = constant(first);
  const Operand* b = constant(second);
  return a != nullptr && b != nullptr && a->value == b->value;
}

/// Whether a read's value decides if a loop is entered that spins on the same word.
bool enters_spin(std::span<const Instruction> code, size_t at) {
  constexpr size_t kNear = 32;
  const Instruction& read = code[at];
  const Places address = address_of(read);
  /// The next instruction from k on that `wanted` picks, with nothing else done before it.
  const auto next = [&](size_t k, const auto& wanted) {
    for (const size_t end = std::min(code.size(), k + kNear); k < end; ++k) {
      if (!quiet(code[k])) {
        break;
      }
      if (wanted(code[k])) {
        return k;
      }
      if (code[k].row->name == "s_branch" || (writes(code[k]) & address).any()) {
        break;
      }
    }
    return code.size();
  };
  Places tainted = writes(read);
  const size_t branch = next(at + 1, [&](const Instruction& i) {
    const bool depends = (reads(i) & tainted).any();
    tainted = depends ? tainted | writes(i) : tainted & ~writes(i);
    return depends && conditional(i);
  });
  if (branch == code.size() || (writes(read) & address).any()) {
    return false;
  }
  const auto spins_there = [&](const Instruction& i) {
    return i.spins && i.row == read.row && i.offset == read.offset &&
           same_address(code, at, static_cast<size_t>(&i - code.data()));
  };
  const int32_t target = code[branch].target;
  return next(branch + 1, spins_there) != code.size() ||
         (target >= 0 && next(static_cast<size_t>(target), spins_there) != code.size());
}

}  // namespace

bool mark_spins(std::span<Instruction> code) {
  std::vector<Loop> loops;
  for (size_t k = 0; k < code.size(); ++k) {
    const int32_t target = code[k].target;
    if (target >= 0 && static_cast<size_t>(target) <= k) {
      loops.push_back({code, static_cast<size_t>(target), k});
    }
  }
  std::stable_sort(loops.begin(), loops.end(), [](const Loop& a, const Loop& b) {
    return a.last - a.first < b.last - b.first;
  });
  std::vector<bool> seen(code.size());
  bool any = false;
  for (size_t k = 0; k < code.size(); ++k) {
    Instruction& i = code[k];
    seen[k] = i.row != nullptr && starts(i, "flat_load") && i.sc0 != i.sc1;
    i.spins = seen[k];
    any |= i.spins;
  }
  for (const Loop& loop : loops) {
    bool waits = true;
    for (size_t k = loop.first; waits && k <= loop.last; ++k) {
      waits = quiet(code[k]);
    }
    for (size_t k = loop.first; k <= loop.last; ++k) {
      Instruction& i = code[k];
      if (i.row == nullptr || seen[k]) {
        continue;
      }
      seen[k] = true;
      i.spins = waits && (reads_lds(i) || atomic(i)) && loop.spins(k);
      any |= i.spins;
    }
  }
  for (size_t k = 0; any && k < code.size(); ++k) {
    if (code[k].row != nullptr && !code[k].spins && reads_lds(code[k])) {
      code[k].spins = enters_spin(code, k);
    }
  }
  return any;
}

}  // namespace weft::sim
