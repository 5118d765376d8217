@echo off
rem Starts the program on Windows. webui-user.bat sets COMMANDLINE_ARGS and calls this file, as users of the
rem reference UI know it; PYTHON names another Python than the one that the py launcher finds.
cd /d "%~dp0"
if defined PYTHON goto named
where py >nul 2>nul
if errorlevel 1 goto on_path
py -3 launch.py %*
goto ended
:on_path
python launch.py %*
goto ended
:named
rem Its value may stand in quotes.
"%PYTHON:"=%" launch.py %*
:ended
set "CODE=%ERRORLEVEL%"
rem A crash has a negative code, which "if errorlevel 1" does not see.
if not "%CODE%"=="0" pause
exit /b %CODE%
