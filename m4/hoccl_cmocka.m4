# HOCCL_CHECK_CMOCKA: the unit tests need cmocka (Debian: libcmocka-dev); without it they are not built.
AC_DEFUN([HOCCL_CHECK_CMOCKA], [
  PKG_CHECK_MODULES([CMOCKA], [cmocka >= 1.1], [have_cmocka=yes], [have_cmocka=no])
  AM_CONDITIONAL([HAVE_CMOCKA], [test "x$have_cmocka" = xyes])
])
