// Makes `sim:` devices openable in a test program that is linked with the simulator.
#include "sim/hip.h"

namespace {

const bool kInstalled = (weft::sim::install(), true);

}  // namespace
