// Symbols that GCC 12 takes from a C library newer than that of manylinux_2_28 (glibc 2.28, GCC 8):
// defined here, they are found inside this library, which exports none of them (csrc/exports.map).

#include <cstddef>  // defines __GLIBCXX__ where the standard library is GNU's

#if defined(__linux__) && defined(__GLIBCXX__)

#include <new>
#include <sstream>

// std::shared_ptr asks it (glibc 2.32) whether its counts must be atomic: always.
extern "C" {
char __libc_single_threaded = 0;
}

namespace std {
// of std::vector's constructors, GLIBCXX_3.4.29
void __throw_bad_array_new_length() { throw bad_array_new_length(); }
}  // namespace std

// of torch's messages, GLIBCXX_3.4.26
template std::basic_stringstream<char>::basic_stringstream();

#endif
