// The smallest use of libweft from another project.
#include <weft/arch/cpu/dispatch.h>

#include <iostream>

int main() {
  std::cout << "this processor runs " << weft::cpu::name_of(weft::cpu::detected_isa()) << '\n';
}
