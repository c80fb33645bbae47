// What the files compiled through foreach_isa.h use, included ahead of it.
#pragma once

#include <immintrin.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "arch/cpu/dispatch.h"
#include "sim/dpp.h"
#include "sim/instruction.h"
#include "sim/wave.h"
